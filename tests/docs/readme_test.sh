#!/usr/bin/env bash
# readme_test.sh SLUICE README: runs the marked blocks of README in one shell, on a mount like quickstart's, and compares the output with
# README's comments. Every line of the comments must appear; numbers, dates and the demo's path may differ. The output of `gpu read` is
# not compared. Exit 77: this machine can't mount (1 if SLUICE_REQUIRE names mount).
set -euo pipefail
sluice=$1 readme=$2
skip() {
  echo "skipped: $1"
  case ,${SLUICE_REQUIRE:-}, in *,mount,*) exit 1 ;; esac
  exit 77
}
((EUID == 0)) || skip "mounting needs root"
[[ -e /dev/fuse ]] || skip "/dev/fuse does not exist"

folder=$(mktemp -d -p "${SLUICE_TEST_DIR:-${TMPDIR:-/tmp}}" readme.XXXXXX)
demo=$folder/demo
clean() {
  cd /
  if mountpoint -q "$demo/mnt"; then "$sluice" umount --lazy "$demo/mnt" || true; fi
  rm -rf --one-file-system "$folder"
}
trap clean EXIT
mkdir -p "$demo"/{tiers/nvme,tiers/ssd,tiers/hdd,mnt,state} "$folder/build/release"
chmod 700 "$demo/tiers"
ln -s "$(dirname "$sluice")" "$folder/build/release/bin"
cd "$folder"
"$sluice" mount --tier nvme="$demo/tiers/nvme" --tier ssd="$demo/tiers/ssd" --tier hdd="$demo/tiers/hdd" --state "$demo/state" "$demo/mnt"

# Replaces numbers, dates, durations and the path of the demo, which differ between runs, and drops the rate of a move that took seconds.
shape() { sed -E 's, \([0-9.]+ .iB/s\)$,,; s,/[^ ]*/demo/,/demo/,; s/[A-Z][a-z]{2} [0-9 ]?[0-9] [0-9:]+/DATE/; s/[0-9][0-9.:-]*/0/g; s/0 (ms|s|min|h)\b/0 s/; s/about once a day/about 0 times a day/; s/ +/ /g'; }
count=0
check() { # COMMAND EXPECTED SAID
  local line
  [[ $1 != *'gpu read'* ]] || return 0
  while read -r line; do
    [[ $line ]] || continue
    count=$((count + 1))
    grep -qxF -e "$line" <(shape <<<"$3" | sed 's/^ //') || { printf 'FAILED: %s\nREADME says: %s\nbut it is:\n%s\n' "$1" "$line" "$3" >&2; exit 1; }
  done < <(shape <<<"$2")
}

command='' expected=''
run() {
  [[ $command ]] || return 0
  echo "$command"
  # In this shell, because the session changes the directory. The umask is that of README.
  eval "$command" >"$folder/said" 2>&1 || { cat "$folder/said" >&2; echo "FAILED: $command" >&2; exit 1; }
  check "$command" "$expected" "$(cat "$folder/said")"
}
umask 022
export LC_ALL=C.UTF-8
while IFS= read -r line; do
  if [[ $line == '# '* ]]; then
    expected+=${line#'# '}$'\n'
  else
    run
    command=$line expected=''
  fi
done < <(awk '/^<!-- tests\/docs\/readme_test.sh/ { getline; inside = 1; next } /^```$/ { inside = 0 } inside' "$readme")
run
((count >= 12)) || { echo "FAILED: only $count lines were compared" >&2; exit 1; }
echo "$count lines match README"
