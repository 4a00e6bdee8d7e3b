#!/usr/bin/env bash
# completion_test.sh SLUICE SOURCE [LAB]: every verb and option of --help is completed, in each shell that is installed. LAB is
# sluice-lab.
set -euo pipefail
sluice=$1 source=$2 lab=${3:-}
completions=$source/packaging/completions
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

# The whole lines that completion offers, for the words given.
offered() { "$sluice" complete "$@"; }

count=0
check_options() {
  local flag answer
  answer=$(offered "$@" --)
  for flag in $("$sluice" "$@" -h | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -e '--[a-z-]+'); do
    grep -qE -e "^$flag"$'\t.+' <<<"$answer" || report "sluice $* $flag is not completed, or has no description"
    count=$((count + 1))
  done
}
check_verbs() {
  local name=${sluice##*/} verb inner
  for verb in $("$sluice" --help | grep -oE '^  [a-z-]+ ' | tr -d ' '); do
    [[ $verb == "$name" ]] && continue
    grep -q "^$verb"$'\t.' <<<"$(offered "$verb")" || report "the verb $verb is not completed"
    if [[ $("$sluice" "$verb" -h) == "usage: $name $verb <verb>"* ]]; then
      for inner in $("$sluice" "$verb" -h | grep -oE '^  [a-z-]+ ' | tr -d ' '); do
        [[ $inner == "$name" ]] && continue
        grep -q "^$inner"$'\t.' <<<"$(offered "$verb" "$inner")" || report "$verb $inner is not completed"
        check_options "$verb" "$inner"
      done
    else
      check_options "$verb"
    fi
  done
}
check_verbs
((count > 80)) || report "only $count options were looked at"

expect() {
  local wanted=$1 got
  shift
  got=$(offered "$@" | cut -f 1 | tr '\n' ' ')
  [[ $got == "$wanted" ]] || report "complete $*: got '$got', not '$wanted'"
}
expect 'auto always never ' status --color ''
expect 'always ' status --color al
expect 'always ' status --color = al
expect 'auto always never ' status --color =
expect '--color=always ' status --color=al
expect 'debug ' mount --log-level d
expect '' mount --config ''
expect '' no-such-verb ''
expect 'status ' stat
expect 'resume ' tier res
expect 'value thresholds ' mount --policy ''
expect 'bandwidth ' set ban
expect 'status ' help stat
expect 'resume ' help tier res

# In a shell, the program is the `sluice` of the PATH.
PATH=$(dirname "$sluice"):$PATH
got=$(bash -c 'source "$1"; COMP_WORDS=(sluice tier drain --ver); COMP_CWORD=3; _sluice; echo "${COMPREPLY[*]}"' - "$completions/sluice.bash")
[[ $got == --verbose ]] || report "bash offers '$got'"
if command -v fish >/dev/null; then
  got=$(fish -c 'source $argv[1]; complete -C "sluice tier drain --ver"' "$completions/sluice.fish")
  [[ $got == --verbose$'\t'* ]] || report "fish offers '$got'"
else
  echo "skipped: no fish"
fi
if command -v zsh >/dev/null; then
  # _describe needs the line editor of a terminal: replaced by a function that prints its arguments.
  got=$(zsh -f -c '_describe() { print -l -- ${(P)4} }; words=(sluice tier drain --ver); CURRENT=4; source $1' - "$completions/_sluice")
  [[ $got == --verbose:* ]] || report "zsh offers '$got'"
else
  echo "skipped: no zsh"
fi

if [[ $lab ]]; then
  count=0 sluice=$lab
  check_verbs
  ((count > 50)) || report "only $count options of sluice-lab were looked at"
  expect 'simulate ' sim
  expect 'lru ' simulate --policy lr
  expect 'auto always never ' gpu-bench --color ''
fi
((failures == 0))
