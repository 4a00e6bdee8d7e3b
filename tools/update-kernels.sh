#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# update-kernels.sh [NVCC]: compiles gather.cu to gpu/kernels/gather.ptx, which builds without nvcc use. Run it after every
# change of gather.cu; tests/lint/kernels_test.sh checks that.
set -euo pipefail
cd "$(dirname "$0")/../gpu/kernels"
nvcc=${1:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
"$nvcc" -ptx -O3 -std=c++17 -arch=compute_75 -o gather.ptx.new gather.cu
{
  echo "// Made of gather.cu by tools/update-kernels.sh. Its SHA-256: $(sha256sum <gather.cu | cut -d' ' -f1)"
  cat gather.ptx.new
} >gather.ptx
rm gather.ptx.new
