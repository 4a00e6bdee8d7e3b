#!/usr/bin/env bash
# The PTX in the tree was compiled from the current source of the kernels, by any nvcc.
set -euo pipefail
cd "$(dirname "$0")/../../gpu/kernels"
if ! head -n 1 gather.ptx | grep -qF "$(sha256sum <gather.cu | cut -d' ' -f1)"; then
  echo "gpu/kernels/gather.ptx is not that of gather.cu: run tools/update-kernels.sh where there is nvcc" >&2
  exit 1
fi
