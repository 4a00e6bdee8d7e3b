#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# run.sh [--quick] [BUILD]: everything that needs a real GPU, on a GPU host, as root. BUILD is a built tree
# (default: build/release). Prints a line a part and a summary; exit 0 if nothing failed. Whatever happens, nothing stays
# mounted and no process is left. SLUICE_TEST_DIR (default: /tmp) is where tiers are made: give it the disk to be measured.
# Results (logs, bench.json, doctor.txt) go to $OUT, if that is set.
set -euo pipefail
quick=
[[ ${1:-} == --quick ]] && { quick=--quick; shift; }
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(realpath "${1:-$source/build/release}")
sluice=$build/bin/sluice
scratch=$(mktemp -d "${SLUICE_TEST_DIR:-/tmp}/sluice-gpu.XXXXXX")
out=${OUT:-$scratch/out}
mount=$scratch/mnt
mkdir -p "$out" "$mount" "$scratch"/{nvme,ssd,hdd}
passed=() failed=() skipped=()

clean_up() {
  if mountpoint -q "$mount"; then
    timeout 60 "$sluice" umount "$mount" || timeout 20 "$sluice" umount --lazy "$mount" || umount -l "$mount"
  fi
  rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# part NAME SECONDS COMMAND...: prints one line. The output is in $out/NAME.log, and is shown after
# a failure.
part() {
  local name=$1 limit=$2 code=0 begin=$SECONDS
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null || code=$?
  local took=$((SECONDS - begin))
  case $code in
    0) passed+=("$name"); echo "ok      $name (${took} s)" ;;
    77) skipped+=("$name"); echo "skipped $name: $(tail -n 1 "$out/$name.log")" ;;
    *)
      failed+=("$name")
      [[ $code == 124 || $code == 137 ]] && echo "FAILED  $name: not done after $limit s" || echo "FAILED  $name: exit $code"
      echo "--- end of its output"
      tail -n 40 "$out/$name.log"
      if [[ -e $scratch/state/sluice.log ]]; then
        echo "--- end of the daemon's log"
        tail -n 20 "$scratch/state/sluice.log"
      fi
      echo "---"
      ;;
  esac
}

[[ $(id -u) == 0 ]] || { echo "run.sh: mounting needs root" >&2; exit 2; }
for file in "$sluice" "$build/bin/sluice-lab" "$build"/bin/gpu_{real,gather,order,checksum}_test; do
  [[ -x $file ]] || { echo "run.sh: no $file; build the tree first" >&2; exit 2; }
done
if ! nvidia-smi -L; then
  echo "run.sh: nvidia-smi finds no GPU" >&2
  exit 2
fi
uname -r
df -hT "$scratch" | tail -n 1
if [[ -w /sys/module/fuse/parameters/enable_uring ]]; then echo Y >/sys/module/fuse/parameters/enable_uring; fi

part gpu_test 600 env SLUICE_REQUIRE=gpu SLUICE_BIN="$sluice" SLUICE_TEST_DIR="$scratch" "$build/bin/gpu_real_test"
part gather_test 300 env SLUICE_REQUIRE=gpu SLUICE_TEST_DIR="$scratch" "$build/bin/gpu_gather_test"
part checksum_test 120 env SLUICE_REQUIRE=gpu "$build/bin/gpu_checksum_test"
part order_test 300 env SLUICE_REQUIRE=gpu SLUICE_TEST_DIR="$scratch" "$build/bin/gpu_order_test"

part mount 60 "$sluice" mount --no-migrate --tier "nvme=$scratch/nvme" --tier "ssd=$scratch/ssd" --tier "hdd=$scratch/hdd" \
  --state "$scratch/state" --hbm 24GiB --hbm-reserve 4GiB "$mount"
if mountpoint -q "$mount"; then
  head -c 314572807 /dev/urandom >"$mount/data"
  head -c 70001 /dev/urandom >"$mount/small"
  part gather_mount 300 env SLUICE_REQUIRE=gpu SLUICE_TEST_DIR="$mount" "$build/bin/gpu_gather_test"
  part order_mount 300 env SLUICE_REQUIRE=gpu SLUICE_TEST_DIR="$mount" "$build/bin/gpu_order_test"
  part doctor 60 "$sluice" doctor "$mount"
  part status 60 "$sluice" status --json "$mount"
  part gpu_read 60 "$sluice" gpu read --check --checksum "$mount/data" "$mount/small"
  part gpu_read_routes 120 bash -c 'for route in auto staged mapped pageable; do "$0" gpu read --check --route $route "$1" || exit 1; done' \
    "$sluice" "$mount/data"
  part example_libsluice 60 "$build/bin/example_gpu_read" "$mount/data"
  part example_ioctl 60 "$build/bin/example_ioctl_read" "$mount/data"
  python3 - "$mount/model.safetensors" <<'END'
import json, os, struct, sys
header = json.dumps({f"w{i}": {"dtype": "U8", "shape": [size], "data_offsets": [begin, begin + size]}
                     for i, (begin, size) in enumerate([(0, 70_000_001), (70_000_001, 200_000_000)])}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + os.urandom(270_000_001))
END
  part example_load_model 60 "$build/bin/example_load_model" "$mount/model.safetensors"
  part torch 180 python3 "$source/tests/gpu/torch_test.py" "$build/lib/libsluice.so" "$mount/data" "$mount/small"
  part torch_expandable 180 env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
    python3 "$source/tests/gpu/torch_test.py" "$build/lib/libsluice.so" "$mount/data" "$mount/small"
  part torch_elsewhere 180 python3 "$source/tests/gpu/torch_test.py" "$build/lib/libsluice.so" "$scratch/nvme/data"
  part hbm 300 env PYTHONPATH="$source/client/python" SLUICE_LIBRARY="$build/lib/libsluice.so.1" \
    python3 "$source/tests/gpu/hbm_test.py" "$sluice" "$mount" "$([[ $quick ]] && echo $((1 << 30)) || echo $((8 << 30)))"
  cat "$out/hbm.log" || true
  mkdir -p "$mount/dropin" "$scratch/plain"
  part dropin 580 python3 "$source/tests/gpu/dropin_test.py" "$build/lib/dropin/libcufile.so.0" "$mount/dropin" "$scratch/plain"
  part dropin_expandable 580 env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
    python3 "$source/tests/gpu/dropin_test.py" "$build/lib/dropin/libcufile.so.0" "$mount/dropin" "$scratch/plain" 268435456
  cat "$out/dropin.log" || true
  part python 300 "$source/tests/python/run.sh" "$(command -v python3)" "$build/lib/libsluice.so.1" "" "$sluice"
  part aibench 590 "$source/tools/lab/aibench/aibench" --quick --build "$build" --json "$out/aibench.json" --svg "$out/aibench.svg" "$mount"
  part bench 590 "$build/bin/sluice-lab" gpu-bench $quick --json "$out/bench.json" "$mount"
  cat "$out/doctor.log" "$out/aibench.log" "$out/bench.log" 2>/dev/null || true
  grep -h "^checksum," "$out/checksum_test.log" 2>/dev/null || true
  grep -h " M/s" "$out/gather_test.log" "$out/gather_mount.log" 2>/dev/null || true
  part umount 60 "$sluice" umount "$mount"
fi
left=$(pgrep -f -- "$scratch" | grep -vx -e $$ -e "$BASHPID" || true)
if [[ -n $left ]]; then
  failed+=("processes left: $left")
  ps -fp "${left//$'\n'/,}" || true
fi
cp "$scratch/state/sluice.log" "$out/" 2>/dev/null || true

echo "passed ${#passed[@]}, failed ${#failed[@]}, skipped ${#skipped[@]}${failed[*]:+: FAILED ${failed[*]}}"
((${#failed[@]} == 0))
