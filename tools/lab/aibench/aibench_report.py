# SPDX-License-Identifier: BSD-2-Clause
"""The results of aibench: as a table, as goals, as JSON and as a chart."""
import dataclasses
import statistics
import xml.sax.saxutils


@dataclasses.dataclass
class Row:
    part: str
    case: str
    way: str
    unit: str
    ours: bool = False
    samples: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)  # core-seconds per GB
    wrong: int = 0  # number of wrong blocks or records
    note: str = ""
    skipped: str = ""  # the reason if there are no samples

    @property
    def value(self):
        return statistics.median(self.samples) if self.samples else None


# (what, part, case, way, minimum, maximum core-seconds per GB). A case or way matches by its
# beginning.
BARS = [
    ("safetensors, one file, GB/s", "load", "one file", "sluice", 45, None),
    ("safetensors, several files, GB/s", "load", "several files", "sluice", 45, None),
    ("safetensors, core-seconds a GB", "load", "one file", "sluice", None, 0.1),
    ("first load after a start of the daemon, GB/s", "first", "load after a start", "sluice", 40, None),
    ("new process after a pause, GB/s", "first", "pause:", "sluice", 45, None),
    ("8 GiB copied from GPU memory in 15 ms, GB/s", "hbm", "copied from", "sluice", 573, None),
    ("8 GiB shared in GPU memory in 5 ms, GB/s", "hbm", "shared in", "sluice", 1718, None),
    ("gather 4 KiB records from GPU memory, M/s", "hbm", "gather of 4 KiB", "sluice", 250, None),
    ("memory back within 200 ms, times a second", "hbm", "memory is back", "sluice", 5, None),
    ("second load after a cold one, GB/s", "first", "second load", "sluice", 20, None),
    ("load_file with SLUICE_ACCELERATE=1, GB/s", "programs", "safetensors:", "sluice", 40, None),
    ("fastsafetensors with SLUICE_ACCELERATE=1, GB/s", "programs", "fastsafetensors:", "sluice", 30, None),
    ("torch.load with SLUICE_ACCELERATE=1, GB/s", "programs", "torch:", "sluice", 30, None),
]

# (what, part, case, minimum): our best rate divided by the best rate of the others in the same case.
RATIOS = [
    ("transformers with SLUICE_ACCELERATE=1, times as fast", "programs", "transformers: from_pretrained", 4),
    ("transformers, files in GPU memory, times as fast", "programs", "transformers: files in GPU memory", 8),
    ("saving, of the disk's rate", "programs", "save:", 0.95),
    ("NIXL, 4 KiB, times the best other backend", "programs", "NIXL: random blocks of 4 KiB", 1),
    ("NIXL, 64 KiB, times the best other backend", "programs", "NIXL: random blocks of 64 KiB", 1),
    ("NIXL, 1 MiB, times the best other backend", "programs", "NIXL: random blocks of 1 MiB", 1),
    ("files on no mount, of the rate without the variable", "programs", "elsewhere:", 0.99),
]


def cases(rows):
    """Rows by part and case, in the order they were measured."""
    found = {}
    for row in rows:
        found.setdefault((row.part, row.case), []).append(row)
    return found


def digits(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def best(rows, ours):
    values = [row.value for row in rows if row.ours == ours and row.value is not None]
    return max(values, default=None)


def table(rows):
    """A table of all cases, with the factor by which our best way is faster than each other way."""
    lines = [("", "", "", "SLUICE IS", "CPU s/GB", "")]
    for (part, case), group in cases(rows).items():
        lines.append((f"{part}: {case}, {group[0].unit}", "", "", "", "", ""))
        mine = best(group, True)
        for row in group:
            if row.value is None:
                lines.append(("", row.way, "-", "", "", f"skipped: {row.skipped}"))
                continue
            ratio = f"{mine / row.value:.1f}x" if mine and not row.ours else ""
            note = f"WRONG: {row.wrong}" if row.wrong else row.note
            lines.append(("", row.way, digits(row.value), ratio,
                          f"{statistics.median(row.cpu):.3f}" if row.cpu else "", note))
    widths = [max((len(line[i]) for line in lines if i or not line[0]), default=0) for i in range(6)]
    out = []
    for line in lines:
        if line[0]:
            out.append("\n" + line[0])
        else:
            numbers = "  ".join(text.rjust(widths[i]) for i, text in enumerate(line[2:5], 2))
            out.append(f"  {line[1].ljust(widths[1])}  {numbers}  {line[5]}".rstrip())
    return "\n".join(out)


def judge(rows):
    """(what, value, bar, ok) for each bar whose row was measured."""
    for what, part, case, way, least, most in BARS:
        values = [row.value if least is not None else statistics.median(row.cpu) for row in rows
                  if row.part == part and row.case.startswith(case) and row.way.startswith(way) and row.samples
                  and (least is not None or row.cpu)]
        if values:
            value = max(values) if least is not None else min(values)
            yield what, value, f">= {least}" if least is not None else f"<= {most}", \
                value >= least if least is not None else value <= most
    for what, part, case, least in RATIOS:
        group = [row for row in rows if row.part == part and row.case.startswith(case)]
        mine, others = best(group, True), best(group, False)
        if mine and others:
            yield what, mine / others, f">= {least}x", mine / others >= least


def as_json(rows, machine):
    return {
        "machine": machine,
        "rows": [{**dataclasses.asdict(row), "value": row.value} for row in rows],
        "bars": [{"what": what, "value": value, "bar": bar, "ok": ok} for what, value, bar, ok in judge(rows)],
    }


def svg(rows, title):
    """A bar chart. Each case has its own scale, so only bars of one case can be compared."""
    width, left, line = 900, 300, 18
    out, y = [], 56

    def text(x, at, words, style=""):
        out.append(f'<text x="{x}" y="{at}" {style}>{xml.sax.saxutils.escape(words)}</text>')

    for (part, case), group in cases(rows).items():
        measured = [row for row in group if row.value is not None]
        if not measured:
            continue
        text(16, y, f"{part}: {case}, {group[0].unit}", 'font-weight="bold"')
        y += 8
        longest = max(row.value for row in measured)
        for row in measured:
            length = max(row.value / longest * (width - left - 90), 1)
            color = "#0b7a75" if row.ours else "#b8b8b8"
            text(left - 8, y + 12, row.way, 'text-anchor="end"')
            out.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{line - 4}" fill="{color}"/>')
            text(left + length + 6, y + 12, digits(row.value))
            y += line
        y += 26
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" font-family="sans-serif" font-size="12">'
            f'<rect width="{width}" height="{y}" fill="white"/>'
            f'<text x="16" y="28" font-size="16">{xml.sax.saxutils.escape(title)}</text>')
    return head + "".join(out) + "</svg>\n"
