# SPDX-License-Identifier: BSD-2-Clause
"""aibench_test.py BUILD: that aibench runs on a machine with nothing, and that it sees bytes that are wrong. Exit 77: no NumPy."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

BENCH = pathlib.Path(__file__).resolve().parents[2] / "tools" / "lab" / "aibench"
sys.path[:0] = [str(BENCH), str(BENCH.parents[2] / "client" / "python")]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
os.environ.setdefault("SLUICE_LIBRARY", str(BUILD / "lib" / "libsluice.so.1"))

try:
    import numpy
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import aibench_report  # noqa: E402
from aibench_site import Content, Model, torch  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, BENCH / "aibench", "--build", BUILD, *arguments], capture_output=True, text=True)


def child(program, environment=None, **arguments):
    """What a program of the part `programs` answers."""
    done = subprocess.run([sys.executable, BENCH / "aibench_child.py", program, json.dumps(arguments)], capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class AibenchTest(unittest.TestCase):
    def test_measures_what_there_is_and_leaves_nothing_behind(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
            place = pathlib.Path(folder, "place")
            place.mkdir()
            out = [pathlib.Path(folder, name) for name in ("out.json", "out.svg")]
            done = run("--quick", "--size", "256MiB", "--json", out[0], "--svg", out[1], place)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(list(place.iterdir()), [])
            rows = json.loads(out[0].read_text())["rows"]
            self.assertTrue(xml.dom.minidom.parse(str(out[1])).getElementsByTagName("rect"))
        loads = [row for row in rows if row["way"] == "sluice.load_safetensors"]
        self.assertEqual(len(loads), 2)
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
            self.assertNotEqual(bool(row["samples"]), bool(row["skipped"]), row)
        self.assertTrue(all(row["value"] > 0 for row in loads), loads)
        programs = {row["case"].partition(":")[0]: row for row in rows if row["part"] == "programs"}
        self.assertEqual(sorted(programs), ["NIXL", "disk", "elsewhere", "fastsafetensors", "safetensors", "save", "torch", "transformers"])
        self.assertTrue(all(row["samples"] for row in rows if row["case"].startswith(("save:", "disk:"))), programs["save"])
        self.assertIn("not on a Sluice mount", done.stdout)

    def test_misuse_says_what_to_do(self):
        for arguments in (["/none"], ["--parts", "all", "/tmp"], ["--only", "everything", "/tmp"], ["--size", "5", "/tmp"], ["--size", "many", "/tmp"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("aibench: error: ", done.stderr)

    def test_wrong_bytes_are_seen(self):
        content = Content("cpu")
        file = io.BytesIO()
        content.write(file, 16_380, 10)
        words = numpy.frombuffer(file.getvalue(), numpy.int64).copy()

        def wrong(first):
            return content.wrong(torch.from_numpy(words) if torch else words, first)

        self.assertEqual(wrong(16_380), 0)
        self.assertEqual(wrong(16_381), 10)
        for place in (0, 5, 511, 5119):
            words[place] ^= 1
            self.assertEqual(wrong(16_380), 1)
            words[place] ^= 1

    def test_wrong_records_are_seen(self):
        content = Content("cpu")
        file = io.BytesIO()
        content.write(file, 0, 64)
        for size in (512, 4096, 65536):
            records = numpy.frombuffer(file.getvalue(), numpy.int64).reshape(-1, size // 8)
            index = numpy.array([3, 0, 2, 3, 1, 1])
            chosen, numbers = records[index], index
            if torch:
                chosen, numbers = torch.from_numpy(chosen), torch.from_numpy(numbers)
            self.assertEqual(content.wrong_records(chosen, numbers), 0)
            chosen[4, -1] ^= 1
            self.assertEqual(content.wrong_records(chosen, numbers), 1)
            numbers[0] = 2
            self.assertEqual(content.wrong_records(chosen, numbers), 2)

    def test_programs_see_wrong_bytes(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
            model = Model(pathlib.Path(folder, "model"), 2 * Model.TENSOR, 1)
            model.make(Content("cpu"))
            pt = pathlib.Path(folder, "model.pt")
            if "skipped" in child("make_torch", folder=str(model.folder), path=str(pt), size=model.size):
                self.skipTest("no PyTorch")
            for path, program, arguments in ((pt, "load_torch", {"path": str(pt)}),
                                             (model.files[0], "load_file", {"folder": str(model.folder)}),
                                             (model.files[0], "load_fastsafetensors", {"folder": str(model.folder)})):
                before = child(program, size=model.size, **arguments)
                if "skipped" in before:
                    continue
                self.assertEqual(before["wrong"], 0)
                self.assertGreater(before["seconds"], 0)
                with open(path, "r+b") as file:
                    file.seek(-5_000_000, os.SEEK_END)
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1]))
                self.assertEqual(child(program, size=model.size, **arguments)["wrong"], 1, program)
                with open(path, "r+b") as file:
                    file.seek(-5_000_000, os.SEEK_END)
                    file.write(bytes([byte]))

    def test_wrong_weights_are_seen(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
            arguments = {"folder": f"{folder}/model", "tiny": f"{folder}/tiny"}
            made = child("make_transformers", size=160 << 20, **arguments)
            if "skipped" in made:
                self.skipTest(made["skipped"])
            self.assertEqual(child("load_transformers", size=made["bytes"], **arguments)["wrong"], 0)
            for path in pathlib.Path(folder, "model").glob("*.safetensors"):
                with open(path, "r+b") as file:
                    file.seek(-3, os.SEEK_END)
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1]))
            self.assertGreaterEqual(child("load_transformers", size=made["bytes"], **arguments)["wrong"], 2)

    def test_the_variable_takes_effect(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
            for value, expected in ("0", False), ("1", True):
                found = child("save", {"SLUICE_ACCELERATE": value}, path=f"{folder}/file", size=1 << 25, rounds=0)
                self.assertEqual(found["accelerated"], expected)
                self.assertEqual(os.listdir(folder), [])

    def test_bars_are_missed_and_met(self):
        rows = [aibench_report.Row("load", "one file, 8 GiB", "sluice.load_safetensors", "GB/s", True, [40, 46, 50], [0.2])]
        bars = {what: ok for what, _, _, ok in aibench_report.judge(rows)}
        self.assertEqual(bars, {"safetensors, one file, GB/s": True, "safetensors, core-seconds a GB": False})

    def test_ratios_are_missed_and_met(self):
        def row(case, rate, ours=False):
            return aibench_report.Row("programs", case, "", "GB/s", ours, [rate])

        rows = [row("transformers: from_pretrained, 8.2 GB", 12, True), row("transformers: from_pretrained, 8.2 GB", 3),
                row("save: 4 GiB, on the disk", 1.8, True), row("save: 4 GiB, on the disk", 2),
                row("NIXL: random blocks of 4 KiB", 3, True), row("NIXL: random blocks of 4 KiB", 1),
                row("NIXL: random blocks of 4 KiB", 4), row("elsewhere: a file", 5)]
        self.assertEqual([(value, bar, ok) for _, value, bar, ok in aibench_report.judge(rows)],
                         [(4, ">= 4x", True), (0.9, ">= 0.95x", False), (0.75, ">= 1x", False)])


if __name__ == "__main__":
    unittest.main()
