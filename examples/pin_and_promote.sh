#!/usr/bin/env bash
# pin_and_promote.sh DIRECTORY FAST SLOW: takes one file of a Sluice mount through all that decides where it is. DIRECTORY is on
# the mount, FAST and SLOW are names of tiers ('sluice status' shows them).
set -euo pipefail
directory=$1 fast=$2 slow=$3
file=$directory/pin_and_promote.bin
tier() { getfattr --absolute-names --only-values -n user.sluice.tier "$file"; }
wait_for() { # TIER: moves are made in the background
  for ((i = 0; i < 600; i++)); do [[ $(tier) == "$1" ]] && return; sleep 0.1; done
  echo "still on $(tier), not on $1:" >&2
  sluice explain "$file" >&2
  return 1
}

head -c 4M /dev/urandom >"$file"
sum=$(sha256sum <"$file")
echo "new, it is on $(tier)"

# By hand, and waiting for it.
sluice move --to "$slow" --wait "$file"
[[ $(tier) == "$slow" ]]
echo "moved to $slow"

# To the fastest tier with room, as a program asks for it that is about to read the file.
setfattr -n user.sluice.prefetch -v promote "$file"
wait_for "$fast"
echo "promoted to $fast"

# For good, whatever its heat: a pin of a directory holds for all below it.
sluice pin "$slow" "$file"
sluice tier run "$directory" 2>/dev/null
wait_for "$slow"
sluice explain "$file"
sluice unpin "$file"

# Its bytes to GPU memory, from wherever they are; to host memory where there is no GPU.
sluice gpu read --check "$file"
[[ $(sha256sum <"$file") == "$sum" ]]
rm "$file"
echo "the bytes are the same as ever"
