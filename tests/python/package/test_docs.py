# SPDX-License-Identifier: BSD-2-Clause
"""Runs the examples of docs/python.md and README.md on the host, with "cpu" instead of "cuda"."""
import json
import pathlib
import re
import struct

import numpy as np
import pytest

import sluice

ROOT = pathlib.Path(__file__).parents[3]


def examples(file):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def pool(folder):
    (folder / "llama").mkdir()
    names = [f"model.layers.{i}.weight" for i in range(5)]
    header = json.dumps({name: {"dtype": "F32", "shape": [256], "data_offsets": [i * 1024, (i + 1) * 1024]}
                         for i, name in enumerate(names)}).encode()
    model = struct.pack("<Q", len(header)) + header + bytes(5 * 1024)
    (folder / "llama" / "model.safetensors").write_bytes(model)
    (folder / "model.safetensors").write_bytes(model)
    (folder / "model.bin").write_bytes(bytes(1 << 20))
    (folder / "train.bin").write_bytes(np.arange(100 * 2048, dtype=np.int32).tobytes())
    (folder / "embeddings.bin").write_bytes(np.arange(1000 * 768, dtype=np.float32).tobytes())
    return folder


@pytest.mark.parametrize("file", ["docs/python.md", "README.md"])
def test_examples(pool, file):
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    found = examples(file)
    assert found
    names = {}
    for example in found:
        example = example.replace("/mnt/pool", str(pool)).replace('device="cuda"', 'device="cpu"').replace('"nvme"', '"b"')
        try:
            exec(compile(example, file, "exec"), names)
        except sluice.Error as error:
            if "not on a Sluice mount" not in str(error):
                raise
