#!/usr/bin/env bash
# Checks the types of the Python package with mypy and pyright, in the versions that tools/setup.sh --lint installs. Exit 77:
# neither is there.
set -euo pipefail
cd "$(dirname "$0")/../../client/python"
tools=$PWD/../../.deps/python-lint/bin
[[ -x $tools/mypy && -x $tools/pyright ]] || { echo "skipped: no mypy and pyright; tools/setup.sh --lint installs them"; exit 77; }
files=(_sluice_accelerate.py sluice/__init__.py sluice/_*.py sluice/accelerate.py sluice/integrations/*.py)
# pyright takes sluice/torch.py for PyTorch where that is not installed.
if python3 -c 'import torch' 2>/dev/null; then files+=(sluice/torch.py); fi
"$tools/mypy" --python-executable "$(command -v python3)" --cache-dir /dev/null sluice
# pyright downloads itself from the npm registry when it first runs; setup has done that.
"$tools/pyright" --pythonpath "$(command -v python3)" "${files[@]}"
