#!/usr/bin/env bash
# The PTX in the tree is that of the kernels' source, whichever nvcc made it.
set -euo pipefail
cd "$(dirname "$0")/../../gpu/kernels"
if ! head -n 1 gather.ptx | grep -qF "$(sha256sum <gather.cu | cut -d' ' -f1)"; then
  echo "gpu/kernels/gather.ptx is not that of gather.cu: run tools/update-kernels.sh where there is nvcc" >&2
  exit 1
fi
