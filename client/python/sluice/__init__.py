# SPDX-License-Identifier: BSD-2-Clause
"""Transfers file bytes to and from GPU memory, for files on a Sluice mount and for any other file.

    import sluice, torch

    weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with sluice.open("/mnt/pool/model.bin") as file:
        print(file.read_into(weights))

Needs only libsluice.so.1. PyTorch, CuPy and NumPy are used only if you use them. docs/python.md is the guide.
"""
import contextlib

from ._control import Stat, pin, prefetch, stat, unpin
from ._file import Buffer, File, Result, Route, checksum, open, register
from ._gather import gather, scatter
from ._library import Error, library, library_version
from ._safetensors import Tensors, load_safetensors, stream_layers
from ._save import save_safetensors

__version__ = "0.1.0"
__all__ = ["Buffer", "Error", "File", "Result", "Route", "Stat", "Tensors", "accelerate", "checksum", "gather",
           "library_version", "load_safetensors", "open", "pin", "prefetch", "register", "save_safetensors", "scatter",
           "stat", "stream_layers", "unpin"]

# Now, because it takes a millisecond, which is a fifth of a load from GPU memory. If it fails, the first call says so.
with contextlib.suppress(ImportError):
    library()


def accelerate() -> None:
    """Lets safetensors, torch.load, transformers and diffusers read files on a Sluice mount through libsluice, straight into
    the memory of the GPU that a tensor goes to. Their results are the same, and other files are read as before.

    Call it before or after they are imported. SLUICE_ACCELERATE=1 in the environment does the same if the package is
    installed, and `python -m sluice.accelerate program.py` for one program.
    """
    import _sluice_accelerate
    _sluice_accelerate.install()
