#!/usr/bin/env bash
# What the documents name is there: files in backticks, the targets of links, and functions of the architecture.
set -euo pipefail
cd "$(dirname "$0")/../.."
shopt -s nullglob
bad=0
count=0
complain() { echo "$*" >&2; bad=1; }

documents=(README.md CHANGELOG.md docs/*.md client/python/README.md)
folders='base|metadata|tiering|gpu|fs|client|tools|tests|packaging|docs|examples|cmake'
for document in "${documents[@]}"; do
  while read -r path; do
    count=$((count + 1))
    [[ -e $path ]] || complain "$document names $path, which is not there"
  done < <(grep -oE "\`($folders)/[A-Za-z0-9_./@-]+" "$document" | cut -c 2- | grep -v NAME | sort -u)
  while read -r link; do
    count=$((count + 1))
    [[ -e $(dirname "$document")/${link%%#*} ]] || complain "$document links to $link, which is not there"
  done < <(grep -oE '\]\([^)# ][^) ]*\)' "$document" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+://' | sort -u)
done
# By the last of its names: `Engine::Parts::choose` is choose().
while read -r name; do
  count=$((count + 1))
  grep -rqw --include='*.[ch]pp' -e "${name##*::}" base metadata tiering gpu fs client || complain "docs/architecture.md names $name, which is not there"
done < <(grep -oE '`[A-Za-z]+(::[A-Za-z_]+)+' docs/architecture.md | cut -c 2- | grep -v NAME | sort -u)
((count > 100)) || complain "only $count names were looked at"
exit $bad
