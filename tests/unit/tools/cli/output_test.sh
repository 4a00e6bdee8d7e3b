#!/usr/bin/env bash
# output_test.sh SLUICE [LAB]: output that cannot be written makes a failure of every verb, with a sentence; if the reader of a
# pipe went away, without one. mount/refusals_test.cpp does the same with verbs that need a mount.
set -euo pipefail
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A pipe that nobody reads.
mkfifo "$scratch/pipe"
exec 3<>"$scratch/pipe"
exec 4>"$scratch/pipe"
exec 3>&-

# fails_to_write ARGUMENTS...: with a full disk, a closed stdout and a closed pipe behind it.
fails_to_write() {
  local said code=0 why
  for why in 'No space left on device' 'Bad file descriptor' ''; do
    code=0
    case $why in
      No*) said=$("$program" "$@" 2>&1 >/dev/full) || code=$? ;;
      Bad*) said=$("$program" "$@" 2>&1 >&-) || code=$? ;;
      '') said=$("$program" "$@" 2>&1 >&4) || code=$? ;;
    esac
    ((code == 1)) || report "$* exits $code, not 1 ($why)"
    if [[ $why ]]; then
      # The reason is lost if it was met before the end.
      [[ $said == *"$name: $1: cannot write the output"@(": $why"|) ]] || report "$* says: $said"
    elif [[ $said == *'cannot write'* ]]; then
      report "$* complains about a reader that went away: $said"
    fi
  done
}

check_program() {
  program=$1 name=${1##*/}
  [[ $("$program" --version 2>&1 >/dev/full) == "$name: --version: cannot write the output: No space left on device" ]] ||
    report "--version says something else"
  fails_to_write --help
  fails_to_write --version
  fails_to_write help
  local count=0 verb code
  for verb in $("$program" complete '' | cut -f 1 | grep -v '^-'); do
    fails_to_write "$verb" --help
    fails_to_write help "$verb"
    count=$((count + 1))
  done
  ((count > 3)) || report "only $count verbs were looked at"

  # Nothing was printed, so nothing was lost.
  code=0
  "$program" no-such-verb >/dev/full 2>&1 || code=$?
  ((code == 2)) || report "an unknown verb exits $code, not 2"
}

check_program "$1"
fails_to_write complete ''
fails_to_write manual
fails_to_write init --tier a=/a --dry-run
fails_to_write init --tier a=/a --json
fails_to_write gpu read --host "$0"
fails_to_write doctor --json "$0"
# A verb that opens files must not write into one of them.
head -c 100 /dev/zero >"$scratch/file"
"$program" gpu read --host "$scratch/file" >&- 2>&- || true
cmp -s "$scratch/file" <(head -c 100 /dev/zero) || report "gpu read has changed the file"

if [[ ${2:-} ]]; then
  check_program "$2"
  # Much more than a buffer: the first error is long past at the end, and it stops there.
  code=0
  said=$("$program" tracegen --objects 1000 --accesses 100000 --output - 2>&1 >/dev/full) || code=$?
  [[ $code == 1 && $said == *"tracegen: cannot write the output"* ]] || report "tracegen exits $code and says: $said"
fi

((failures == 0)) || exit 1
