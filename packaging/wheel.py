#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""wheel.py LIBRARY FOLDER: makes a wheel of the Python package that contains LIBRARY, a libsluice.so.1 as SLUICE_WHEEL
builds it, and libsluice_hf3fs.so.1 beside it, and prints its path. The wheel's tag is the oldest C library that LIBRARY runs with (PEP 600)."""
import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "client" / "python"
# The C library, and nothing else: other libraries differ between systems, and the process may have loaded others of the name.
ALLOWED = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux[-a-z0-9]*\.so\.\d+")
# Their code is in LIBRARY.
INCLUDED = ("libspdlog-dev", "libfmt-dev", "nlohmann-json3-dev")
TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel


def tag_of(library):
    """The platform tag: manylinux_2_36_x86_64."""
    def read(option):
        return subprocess.run(["readelf", "--wide", option, library], check=True, capture_output=True, text=True,
                              env={**os.environ, "LC_ALL": "C"}).stdout

    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read("-d")):
        if not ALLOWED.fullmatch(name):
            raise SystemExit(f"wheel: {library} needs {name}, which other systems may not have; build it with SLUICE_WHEEL")
    machine = re.search(r"Machine: +(.*)", read("-h"))[1]
    architecture = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}.get(machine)
    if architecture is None:
        raise SystemExit(f"wheel: {library} is for {machine}; only x86-64 and AArch64 have a tag here")
    versions = [tuple(map(int, found)) for found in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", read("-V"))]
    major, minor = max([*versions, (2, 17)])  # no older manylinux supports AArch64
    return f"manylinux_{major}_{minor}_{architecture}"


def files_of(library, tag, project):
    """Yields (path in the wheel, content)."""
    for path in sorted([*PACKAGE.glob("sluice/**/*"), PACKAGE / "_sluice_accelerate.py", PACKAGE / "sluice-accelerate.pth"]):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(PACKAGE)), path.read_bytes()
    for name in ("libsluice.so.1", "libsluice_hf3fs.so.1"):
        yield f"sluice/lib/{name}", (pathlib.Path(library).parent / name).read_bytes()
    info = f"sluice-{project['version']}.dist-info"
    yield f"{info}/METADATA", "\n".join([
        "Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}",
        f"Summary: {project['description']}", f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}", ""]).encode()
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    yield f"{info}/entry_points.txt", "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in project["entry-points"].items()).encode()
    yield "sluice-hf3fs.pth", (PACKAGE / "sluice-hf3fs.pth").read_bytes()
    yield f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()
    for package in INCLUDED:
        yield f"{info}/licenses/{package}", pathlib.Path(f"/usr/share/doc/{package}/copyright").read_bytes()


def make_wheel(library, folder):
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    tag = f"py3-none-{tag_of(library)}"
    wheel = pathlib.Path(folder) / f"{project['name']}-{project['version']}-{tag}.whl"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name, content):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            archive.writestr(entry, content)

        for name, content in files_of(library, tag, project):
            add(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", len(content)])
        name = f"sluice-{project['version']}.dist-info/RECORD"
        rows.writerow([name, "", ""])
        add(name, record.getvalue())
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make_wheel(*sys.argv[1:]))
