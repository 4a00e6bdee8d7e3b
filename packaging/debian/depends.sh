#!/usr/bin/env bash
# depends.sh BINARY...: prints the packages, with minimum versions, that the binaries and their included libraries depend on:
# the C and C++ libraries, which are not included.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
here=$(dirname "$0")
mapfile -t files < <(realpath "$@"
  ldd "$@" | grep -oE '=> /[^ ]+' | cut -c 4- | sort -u |
    while read -r library; do grep -qEf "$here/system-libraries" <<<"${library##*/}" || echo "$library"; done)
mkdir "$scratch/debian"
touch "$scratch/debian/control" # required by dpkg-shlibdeps
cd "$scratch"
dpkg-shlibdeps --warnings=0 -O "${files[@]}" >found 2>errors || { cat errors >&2; exit 1; }
sed 's/^shlibs:Depends=//; s/, /\n/g' found | grep -E '^(libc6|libgcc-s1|libstdc\+\+6)( |$)' | paste -s -d, | sed 's/,/, /g'
