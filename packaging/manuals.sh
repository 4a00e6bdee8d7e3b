#!/usr/bin/env bash
# manuals.sh PROGRAM PAGES OUTPUT: writes the man pages of PROGRAM (sluice or sluice-lab) into OUTPUT/man1 to man8, compressed as
# Debian requires: a page for each verb, printed by the program itself, and the page of the program from the directory PAGES.
# For sluice also the pages about files, headers and administration.
set -euo pipefail
program=$1 pages=$2 output=$3
name=${program##*/}

rm -rf "$output"
mkdir -p "$output"/man{1,2,3,5,8}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for verb in $("$program" complete '' | cut -f 1 | grep -v '^-'); do
  "$program" manual "$verb" >"$scratch/$name-$verb.1"
done
"$program" manual >"$scratch/verbs"
version=$("$program" --version)
sed -e "s/@VERSION@/${version#* }/" -e "/^@VERBS@$/{r $scratch/verbs
d}" "$pages/$name.1.in" >"$scratch/$name.1"
if [[ $name == sluice ]]; then cp "$pages"/*.[0-9] "$scratch"; fi
for page in "$scratch"/*.[0-9]; do
  gzip -9nc "$page" >"$output/man${page##*.}/${page##*/}.gz"
done
