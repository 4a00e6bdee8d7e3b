#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# update-kernels.sh [NVCC]: compiles the kernels in gpu/kernels whose source has changed to PTX, which builds without nvcc
# use. Run it after every change of a .cu file; tests/lint/kernels_test.sh checks that.
set -euo pipefail
cd "$(dirname "$0")/../gpu/kernels"
nvcc=${1:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
for source in *.cu; do
  ptx=${source%.cu}.ptx
  title="// Made of $source by tools/update-kernels.sh. Its SHA-256: $(sha256sum <"$source" | cut -d' ' -f1)"
  if [[ -e $ptx && $(head -n 1 "$ptx") == "$title" ]]; then continue; fi
  "$nvcc" -ptx -O3 -std=c++17 -arch=compute_75 -o "$ptx.new" "$source"
  { echo "$title" && cat "$ptx.new"; } >"$ptx"
  rm "$ptx.new"
done
