# SPDX-License-Identifier: BSD-2-Clause
"""Transfers file bytes to and from GPU memory, for files on a Sluice mount and for any other file.

    import sluice, torch

    weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with sluice.open("/mnt/pool/model.bin") as file:
        print(file.read_into(weights))

Needs only libsluice.so.1. PyTorch, CuPy and NumPy are used only if you use them. docs/python.md is the guide.
"""
from ._control import Stat, pin, prefetch, stat, unpin
from ._file import Buffer, File, Result, Route, open, register
from ._gather import gather, scatter
from ._library import Error, library_version
from ._safetensors import load_safetensors, stream_layers

__version__ = "0.1.0"
__all__ = ["Buffer", "Error", "File", "Result", "Route", "Stat", "gather", "library_version", "load_safetensors", "open",
           "pin", "prefetch", "register", "scatter", "stat", "stream_layers", "unpin"]
