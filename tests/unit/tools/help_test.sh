#!/usr/bin/env bash
# help_test.sh SLUICE SOURCE: what --help offers is what the man pages and docs/configuration.md describe, and exit codes
# are as promised.
set -euo pipefail
sluice=$1 source=$2
failures=0
complain() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
expect_code() {
  local code=0 wanted=$1
  shift
  "$sluice" "$@" >/dev/null 2>&1 || code=$?
  ((code == wanted)) || complain "sluice $* exits $code, not $wanted"
}

expect_code 0 --help
expect_code 0 --version
expect_code 2
expect_code 2 stats
expect_code 2 status
expect_code 2 mount
expect_code 2 mount --no-such-flag /
expect_code 1 status /
expect_code 1 umount /
expect_code 1 mount --tier 'a b=/' /
# Captured first, here and below: a verb that answers with exit code 2 is right to, but `pipefail` would call it a failure.
said=$("$sluice" stats 2>&1 || true)
[[ $said == *"did you mean 'status'"* ]] || complain "no help with a misspelt verb: $said"

page=$(sed 's/\\-/-/g' "$source/docs/man/sluice.1")
for verb in mount umount status fsck; do
  [[ $page == *"sluice $verb"* ]] || complain "sluice.1 lacks the verb $verb"
done
for verb in mount umount status; do
  expect_code 0 $verb -h
  expect_code 0 $verb --help
  for flag in $("$sluice" $verb -h | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -e '--[a-z-]+'); do
    [[ $flag == --help ]] || grep -qE -e "$flag\b" <<<"$page" || complain "sluice.1 lacks $verb's $flag"
  done
done

# Every option of the reference file is in both descriptions.
for key in $(grep -oE '^#?[a-z_]+ = ' "$source/packaging/sluice.toml" | tr -d '#= ' | sort -u); do
  grep -qE "^\| \`$key\` " "$source/docs/configuration.md" || complain "docs/configuration.md lacks $key"
  grep -qE "^\.BR $key " "$source/docs/man/sluice.toml.5" || complain "sluice.toml.5 lacks $key"
done
((failures == 0))
