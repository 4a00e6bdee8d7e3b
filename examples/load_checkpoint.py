#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""load_checkpoint.py MODEL: loads a safetensors file, an index, or the folder of either, and lists the tensors.

To the GPU with PyTorch, to NumPy arrays without. Needs libsluice and numpy.
"""
import sys
import time

import sluice

try:
    import torch
except ImportError:
    torch = None

if torch is None:
    how = {"framework": "np"}
elif torch.cuda.is_available():
    how = {"device": "cuda"}
else:
    how = {"device": "cpu"}

begun = time.perf_counter()
tensors = sluice.load_safetensors(sys.argv[1], **how)
seconds = time.perf_counter() - begun

total = sum(tensor.nbytes for tensor in tensors.values())
print(f"{len(tensors)} tensors, {total / 1e6:.1f} MB in {seconds:.3f} s ({how})")
for name, tensor in tensors.items():
    print(f"  {name:30} {str(tensor.dtype):15} {tuple(tensor.shape)}")
