#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# update-options.sh [--check] SLUICE: writes what people read about options from the table in fs/control/option_table.cpp:
# packaging/sluice.toml, and in docs/configuration.md and docs/man/sluice.toml.5 the lines between "BEGIN options GROUP" and
# "END options". --check only shows what differs. SLUICE is the program that was built (default build/release/bin/sluice).
set -euo pipefail
check=
case ${1:-} in
  --check) check=1; shift ;;
  -h | --help) sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
esac
sluice=$(realpath -m "${1:-$(dirname "$0")/../build/release/bin/sluice}")
if ! "$sluice" manual options toml >/dev/null; then
  echo "update-options: $sluice cannot print the options; build it, or give its path" >&2
  exit 2
fi
cd "$(dirname "$0")/.."

# filled FORMAT FILE: the file with the lines between its marks replaced.
filled() {
  local line is_old=
  while IFS= read -r line; do
    if [[ $line == *'END options'* ]]; then is_old=; fi
    if [[ ! $is_old ]]; then printf '%s\n' "$line"; fi
    if [[ $line =~ 'BEGIN options '([a-z]+) ]]; then
      "$sluice" manual options "$1" "${BASH_REMATCH[1]}"
      is_old=1
    fi
  done <"$2"
}

code=0
# update FILE: standard input becomes the file, or is compared with it.
update() {
  if [[ $check ]]; then
    diff -u "$1" - || code=1
  else
    local text
    text=$(cat && echo .)
    printf %s "${text%.}" >"$1"
  fi
}

update packaging/sluice.toml < <("$sluice" manual options toml)
update docs/configuration.md < <(filled markdown docs/configuration.md)
update docs/man/sluice.toml.5 < <(filled roff docs/man/sluice.toml.5)
if ((code)); then echo "these differ from the table of options; run: tools/update-options.sh $sluice" >&2; fi
exit $code
