#!/usr/bin/env bash
# run.sh SLUICE LIBSLUICE FAKE_CUDA PYTHON: runs every program of examples/ on a mount of two tiers. C programs are compiled with a fake
# CUDA runtime and run with the fake GPU and without a GPU. (tests/gpu/run.sh uses a real GPU.) Exit 77: something is missing on this
# machine (1 if SLUICE_REQUIRE names it).
set -euo pipefail
sluice=$1 fake=$(dirname "$3") python=$4
repo=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$(dirname "$sluice"):$PATH
export SLUICE_LIBRARY=$2 PYTHONPATH=$repo/client/python PYTHONDONTWRITEBYTECODE=1

skip() { # WHAT REASON
  echo "skipped: $2"
  case ,${SLUICE_REQUIRE:-}, in *,"$1",*) exit 1 ;; esac
  exit 77
}
((EUID == 0)) || skip mount "mounting needs root"
[[ -e /dev/fuse ]] || skip mount "/dev/fuse does not exist"
"$python" -c 'import numpy' 2>/dev/null || skip python "$python has no numpy; tools/setup.sh installs it"

folder=$(mktemp -d -p "${SLUICE_TEST_DIR:-${TMPDIR:-/tmp}}" examples.XXXXXX)
mount=$folder/mnt
clean() {
  for each in "$mount" "$folder/adopted/mnt"; do
    if mountpoint -q "$each"; then "$sluice" umount "$each" || umount -l "$each" || true; fi
  done
  rm -rf --one-file-system "$folder"
}
trap clean EXIT
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND" >&2' ERR

mkdir "$folder"/{fast,slow,mnt}
LD_LIBRARY_PATH=$fake "$sluice" mount --no-migrate --tier "fast=$folder/fast" --tier "slow=$folder/slow" --state "$folder/state" "$mount"

left=" $(cd "$repo/examples" && printf "%s " *.c *.sh *.py)"
# show EXAMPLE WANTED COMMAND...: runs it and checks that its output contains WANTED.
show() {
  local example=$1 wanted=$2 said
  shift 2
  left=${left/ $example / }
  said=$("$@" 2>&1) || { printf '%s\n' "$said"; echo "FAILED: $example" >&2; exit 1; }
  printf '== %s\n%s\n' "$example" "$said"
  [[ $said == *"$wanted"* ]] || { echo "FAILED: $example does not say '$wanted'" >&2; exit 1; }
}

head -c 5000001 /dev/urandom >"$mount/data"
"$python" - "$mount/model.safetensors" <<'PYTHON'
import json, struct, sys
header = json.dumps({f"layers.{i}.weight": {"dtype": "F32", "shape": [64, 64], "data_offsets": [i * 16384, (i + 1) * 16384]} for i in range(3)}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + bytes(3 * 16384))
PYTHON

for example in gpu_read ioctl_read load_model ring_read; do
  cc -Wall -Wextra "$repo/examples/$example.c" -o "$folder/$example" -I"$repo/client/include" -I"$repo/tests/support/cuda_runtime" \
    "$SLUICE_LIBRARY" -Wl,-rpath,"$(dirname "$SLUICE_LIBRARY")" -ldl -lpthread
done
gpu() { LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }
show gpu_read.c "5000001 bytes to GPU memory by " gpu "$folder/gpu_read" "$mount/data"
show ioctl_read.c "all bytes equal the file" gpu "$folder/ioctl_read" "$mount/data"
show load_model.c "layers.2.weight" gpu "$folder/load_model" "$mount/model.safetensors"
show gpu_read.c "5000001 bytes to host memory by host" "$folder/gpu_read" "$mount/data"
show load_model.c "bytes to host memory by host" "$folder/load_model" "$mount/model.safetensors"
show ring_read.c "threads, depth 32, by the daemon, into host memory" "$folder/ring_read" --seconds 0.2 --depth 32 "$mount/data"
show ring_read.c "into GPU memory" gpu "$folder/ring_read" --gpu --threads 2 --seconds 0.2 --depth 32 "$mount/data"
show load_checkpoint.py "3 tensors" "$python" "$repo/examples/load_checkpoint.py" "$mount/model.safetensors"
if "$python" -c 'import transformers' 2>/dev/null; then
  show serve_model.py "that begin with it" "$python" "$repo/examples/serve_model.py" "$mount/tiny" --ask 'once upon'
else
  echo "== serve_model.py is not run: $python has no transformers"
  left=${left/ serve_model.py / }
fi
show gather_rows.py "and wrote them back, halved" "$python" "$repo/examples/gather_rows.py" "$mount/table.bin"
show pin_and_promote.sh "the content is unchanged" "$repo/examples/pin_and_promote.sh" "$mount" fast slow
show adopt.sh "both disks together contain the same tree" "$repo/examples/adopt.sh" "$folder/adopted"
[[ ! ${left// /} ]] || { echo "FAILED: these examples are not tested:$left" >&2; exit 1; }
