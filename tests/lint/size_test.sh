#!/usr/bin/env bash
# A source file past 500 lines is usually two ideas. Those that are not say why here.
set -euo pipefail
cd "$(dirname "$0")/../.."
declare -A reasons=(
  # [path]="why it is one idea"
)
bad=0
while read -r lines file; do
  if ((lines > 500)) && [[ ! ${reasons[$file]:-} ]]; then
    echo "$file has $lines lines: split it by subject, or say in tests/lint/size_test.sh why not" >&2
    bad=1
  fi
done < <(find base metadata tiering gpu fs client tools tests examples -name '*.[ch]pp' -exec wc -l {} + | grep -v ' total$')
for file in "${!reasons[@]}"; do
  if [[ ! -e $file ]] || (($(wc -l <"$file") <= 500)); then
    echo "tests/lint/size_test.sh excuses $file, which needs no excuse" >&2
    bad=1
  fi
done
exit $bad
