#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# update-kernels.sh [NVCC]: compiles the kernels in gpu/kernels to PTX and packs it into gpu/kernels/ptx.tar.xz, which
# builds without nvcc use. Run it after every change of a .cu file; tests/lint/kernels_test.sh checks that.
set -euo pipefail
cd "$(dirname "$0")/../gpu/kernels"
nvcc=${1:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
for source in *.cu; do
  "$nvcc" -ptx -O3 -std=c++17 -arch=compute_75 -o "$made/ptx" "$source"
  title="// Made of $source by tools/update-kernels.sh. Its SHA-256: $(sha256sum <"$source" | cut -d' ' -f1)"
  { echo "$title" && cat "$made/ptx"; } >"$made/${source%.cu}.ptx"
done
rm "$made/ptx"
(cd "$made" && tar -cJ --sort=name --mtime=@0 --mode=644 --owner=0 --group=0 --numeric-owner -- *.ptx) >ptx.tar.xz
