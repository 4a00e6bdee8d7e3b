#!/usr/bin/env bash
# run.sh PYTHON LIBSLUICE LIBCUDA [SLUICE]: the tests of the Python package, on plain files; with SLUICE, the program, on a mount
# of two tiers too. If LIBSLUICE is empty, the package that PYTHON has installed is tested. LIBCUDA is the fake one. Exit 77:
# something is missing here (1 if SLUICE_REQUIRE names it).
set -euo pipefail

python=$1 sluice=${4:-}
export SLUICE_FAKE_CUDA=$3 PYTHONDONTWRITEBYTECODE=1
tests=$(cd "$(dirname "$0")" && pwd)
if [[ $2 ]]; then export SLUICE_LIBRARY=$2 PYTHONPATH=${tests%/tests/python}/client/python; else unset SLUICE_LIBRARY PYTHONPATH; fi

skip() { # WHAT REASON
  echo "skipped: $2"
  case ,${SLUICE_REQUIRE:-}, in *,"$1",*) exit 1 ;; esac
  exit 77
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip python "$python is older than 3.11"
"$python" -c 'import pytest, numpy' 2>/dev/null || skip python "$python has no pytest or no numpy; tools/setup.sh installs them"

folder=$(mktemp -d -p "${SLUICE_TEST_DIR:-${TMPDIR:-/tmp}}" python.XXXXXX)
clean() {
  if [[ $sluice ]] && mountpoint -q "$folder/mnt"; then
    "$sluice" umount "$folder/mnt" || umount -l "$folder/mnt" || true
  fi
  rm -rf --one-file-system "$folder"
}
trap clean EXIT

if [[ $sluice ]]; then
  ((EUID == 0)) || skip mount "mounting needs root"
  [[ -e /dev/fuse ]] || skip mount "there is no /dev/fuse"
  mkdir "$folder"/{a,b,mnt}
  # A daemon with the fake GPU; without one it looks for a real one.
  LD_LIBRARY_PATH=${SLUICE_FAKE_CUDA:+$(dirname "$SLUICE_FAKE_CUDA")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$sluice" mount \
    --tier "a=$folder/a" --tier "b=$folder/b" --state "$folder/state" --hbm 64MiB "$folder/mnt"
  export SLUICE_TEST_MOUNT=$folder/mnt SLUICE_TEST_PROGRAM=$sluice
fi
"$python" -m pytest -q -rs -p no:cacheprovider --basetemp "$folder/plain" "$tests/package"
