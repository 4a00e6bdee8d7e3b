#!/usr/bin/env bash
# pin_and_promote.sh DIRECTORY FAST SLOW: shows everything that determines the tier of a file.
# DIRECTORY is on a Sluice mount; FAST and SLOW are names of tiers ('sluice status' shows them).
set -euo pipefail
directory=$1 fast=$2 slow=$3
file=$directory/pin_and_promote.bin
tier() { getfattr --absolute-names --only-values -n user.sluice.tier "$file"; }
wait_for() {  # TIER: files are moved in the background
  for ((i = 0; i < 600; i++)); do [[ $(tier) == "$1" ]] && return; sleep 0.1; done
  echo "still on $(tier), not on $1:" >&2
  sluice explain "$file" >&2
  return 1
}

head -c 4M /dev/urandom >"$file"
sum=$(sha256sum <"$file")
echo "the new file is on $(tier)"

# Move it by hand, and wait for it.
sluice move --to "$slow" --wait "$file"
[[ $(tier) == "$slow" ]]
echo "moved to $slow"

# To the fastest tier with room, as a program would request before it reads the file.
setfattr -n user.sluice.prefetch -v promote "$file"
wait_for "$fast"
echo "promoted to $fast"

# Permanently, regardless of heat: a pin of a directory applies to everything below it.
sluice pin "$slow" "$file"
sluice tier run "$directory" 2>/dev/null
wait_for "$slow"
sluice explain "$file"
sluice unpin "$file"

# Read it into GPU memory from any tier; into host memory if there is no GPU.
sluice gpu read --check "$file"
[[ $(sha256sum <"$file") == "$sum" ]]
rm "$file"
echo "the content is unchanged"
