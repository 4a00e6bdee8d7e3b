#!/usr/bin/env bash
# Checks the documents: files in backticks, targets of links and functions in docs/architecture.md and docs/life-*.md exist;
# README has at most 150 lines; no line of README or docs is longer than 120 columns; the glossary has at most 20 words.
set -euo pipefail
cd "$(dirname "$0")/../.."
shopt -s nullglob
bad=0
count=0
report() { echo "$*" >&2; bad=1; }

documents=(README.md CHANGELOG.md docs/*.md client/python/README.md)
folders='base|metadata|tiering|gpu|fs|client|tools|tests|packaging|docs|examples|cmake'
for document in "${documents[@]}"; do
  while read -r path; do
    count=$((count + 1))
    [[ -e $path ]] || report "$document names $path, which does not exist"
  done < <(grep -oE "\`($folders)/[A-Za-z0-9_./@-]+" "$document" | cut -c 2- | grep -v NAME | sort -u)
  while read -r link; do
    count=$((count + 1))
    [[ -e $(dirname "$document")/${link%%#*} ]] || report "$document links to $link, which does not exist"
  done < <(grep -oE '\]\([^)# ][^) ]*\)' "$document" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+://' | sort -u)
done
# Only the last part of a name is searched: `Engine::Parts::choose` is choose().
while read -r name; do
  count=$((count + 1))
  grep -rqw --include='*.[ch]pp' -e "${name##*::}" base metadata tiering gpu fs client ||
    report "docs/architecture.md or docs/life-*.md names $name, which does not exist"
done < <(grep -ohE '`[A-Za-z]+(::[A-Za-z_]+)+' docs/architecture.md docs/life-*.md | cut -c 2- | grep -v NAME | sort -u)
# Anchors of links: GitHub makes them from the headings.
anchors() { sed '/^ *```/,/^ *```/d' "$1" | sed -n 's/^##* //p' | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
for document in "${documents[@]}"; do
  while read -r link; do
    file=${link%%#*}
    target=$([[ $file ]] && echo "$(dirname "$document")/$file" || echo "$document")
    [[ $target != *.md || ! -e $target ]] || grep -qxF -e "${link#*#}" <(anchors "$target") || report "$document links to $link, which has no such heading"
  done < <(grep -oE '\]\([^) ]*#[^) ]+\)' "$document" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+://' | sort -u)
done
(($(wc -l <README.md) <= 150)) || report "README.md has more than 150 lines"
export LC_ALL=C.UTF-8  # columns, not bytes
for document in README.md docs/*.md; do
  while read -r line; do report "$document:$line is longer than 120 columns"; done < <(grep -nE '^.{121}' "$document" | cut -d : -f 1)
done
words=$(sed -n '/^## Glossary/,/^## The parts/p' docs/architecture.md | grep -c '^| [a-z]') || true
((words > 10 && words <= 21)) || report "the glossary of docs/architecture.md has $((words - 1)) words, not 10 to 20"
((count > 100)) || report "only $count names were looked at"
exit $bad
