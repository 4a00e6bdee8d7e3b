#!/usr/bin/env bash
# Every C and C++ file is formatted by clang-format 14; other versions differ in details. The kernels (.cu) are excluded,
# because their PTX depends on their exact bytes (kernels_test.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
format=$(command -v clang-format-14 || command -v clang-format) || { echo "clang-format is not installed: tools/setup.sh --lint" >&2; exit 77; }
"$format" --version | grep -q 'version 14\.' || { echo "$format is not version 14" >&2; exit 77; }
bad=0
mapfile -d '' files < <(find base metadata tiering gpu fs client tools tests examples -name '*.[ch]pp' -print0 -o -name '*.[ch]' -print0)
((${#files[@]} > 400)) || { echo "only ${#files[@]} files were found" >&2; exit 1; }
while read -r file; do
  echo "$file is not as clang-format writes it: clang-format -i $file" >&2
  bad=1
done < <(printf '%s\0' "${files[@]}" | xargs -0 -n 40 -P 2 "$format" --dry-run 2>&1 | grep -oP '^[^ :]+(?=:\d+:\d+: warning: code should be clang-formatted)' | sort -u)
exit $bad
