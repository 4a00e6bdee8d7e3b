#!/usr/bin/env bash
# manuals.sh SLUICE PAGES OUTPUT: puts the man pages into OUTPUT/man1 to man8, compressed as Debian wants them: a page for
# each verb, made by the program itself, and those of the directory PAGES.
set -euo pipefail
sluice=$1 pages=$2 output=$3

rm -rf "$output"
mkdir -p "$output"/man{1,2,3,5,8}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for verb in $("$sluice" complete '' | cut -f 1 | grep -v '^-'); do
  "$sluice" manual "$verb" >"$scratch/sluice-$verb.1"
done
"$sluice" manual >"$scratch/verbs"
version=$("$sluice" --version)
sed -e "s/@VERSION@/${version#sluice }/" -e "/^@VERBS@$/{r $scratch/verbs
d}" "$pages/sluice.1.in" >"$scratch/sluice.1"
cp "$pages"/*.[0-9] "$scratch"
for page in "$scratch"/*.[0-9]; do
  gzip -9nc "$page" >"$output/man${page##*.}/${page##*/}.gz"
done
