#!/usr/bin/env bash
# The PTX in the tree was compiled from the current source of the kernels, by any nvcc.
set -euo pipefail
cd "$(dirname "$0")/../../gpu/kernels"
for source in *.cu; do
  ptx=${source%.cu}.ptx
  if ! tar -xOf ptx.tar.xz "$ptx" | sed -n 1p | grep -qF "$(sha256sum <"$source" | cut -d' ' -f1)"; then
    echo "$ptx in gpu/kernels/ptx.tar.xz is not that of $source: run tools/update-kernels.sh where there is nvcc" >&2
    exit 1
  fi
done
