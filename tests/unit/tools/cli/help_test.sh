#!/usr/bin/env bash
# help_test.sh SLUICE SOURCE [LAB]: the man pages made of the help texts are complete, the descriptions of options are up to
# date, and exit codes are as documented. LAB is sluice-lab.
set -euo pipefail
sluice=$1 source=$2 lab=${3:-}
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }
expect_code() {
  local code=0 wanted=$1
  shift
  "$sluice" "$@" </dev/null >/dev/null 2>&1 || code=$?
  ((code == wanted)) || report "sluice $* exits $code, not $wanted"
}

expect_code 0 --help
expect_code 0 --version
expect_code 2
expect_code 2 stats
expect_code 2 mount
expect_code 2 init
expect_code 2 init --name a/b --tier a=/a --mountpoint /m --dry-run
expect_code 1 init --tier a --mountpoint /m --dry-run
expect_code 1 init --tier a=/no/such/a --mountpoint /no/m --output /no/such/file
expect_code 0 init --tier a=/a --dry-run
expect_code 0 init --tier a=/a --json
expect_code 2 init --for films --tier a=/a --dry-run
expect_code 0 init --for models --tier a=/a --dry-run
expect_code 2 mount --no-such-flag /
expect_code 1 status /proc
expect_code 2 status /proc /proc
expect_code 0 help
expect_code 2 help stats
expect_code 1 umount /
expect_code 2 mount --tier 'a b=/' /
expect_code 2 mount --config /no/such/file.toml
expect_code 2 mount --tier a=/a --tier a=/b /
expect_code 2 mount --small-file lots --tier a=/ /
expect_code 1 mount --tier a=/no/such/a /
expect_code 2 tier
expect_code 2 tier rum
expect_code 0 tier --help
expect_code 2 tier drain
expect_code 2 tier close
expect_code 1 tier close /proc
expect_code 2 umount --timeout soon /
expect_code 2 tier add nvme
expect_code 2 tier replace nvme
expect_code 2 tier lost
expect_code 2 origin
expect_code 2 origin check
expect_code 2 origin check --races many /
expect_code 2 origin scan
expect_code 1 origin check /no/such
expect_code 1 origin scan /no/such
expect_code 2 trace
expect_code 2 trace record
expect_code 2 trace record -o /dev/null --for 30
expect_code 2 move /
expect_code 2 move --to nvme
expect_code 2 pin nvme
expect_code 2 unpin
expect_code 2 budget /proc/version much
expect_code 2 explain
expect_code 2 explain --color=sometimes /
expect_code 2 plan --limit many
expect_code 2 top
expect_code 2 set
expect_code 2 set --reset bandwidth / /
expect_code 1 set log_level debug /proc
expect_code 2 top --once --interval 0
expect_code 2 web --port 70000
expect_code 2 reload / --config /no/such/file.toml
expect_code 1 reload --config /no/such/file.toml
# expect_words WORDS ARGUMENTS...: what the error says, in our words and not in those of a library.
expect_words() {
  local words=$1 said
  shift
  said=$("$sluice" "$@" </dev/null 2>&1) || true
  [[ $said == *"$words"* ]] || report "sluice $* says '$said', not '$words'"
}
expect_words "--limit: must be a whole number, 0 or more, not 'many'" plan --limit many
expect_words "--limit: must be a whole number, 0 or more, not '-1'" plan --limit -1
expect_words "--limit needs a value" plan --limit
expect_words "unexpected argument '/b'" status /proc /b
# Nothing of Sluice is mounted on /proc.
expect_code 1 explain /proc/version
expect_code 1 pin nvme /proc/version
expect_code 1 unpin /proc/version
expect_code 1 budget /proc/version 1GiB
expect_code 1 move --to nvme /proc/version
expect_code 1 move --to nvme /no/such/file
# shellcheck disable=SC2086
for verb in plan moves web reload restart 'set bandwidth' 'set bandwidth 1MiB' 'top --once' 'tier run' 'tier pause' 'tier resume' 'tier drain nvme' 'tier add a=/a' 'tier replace a=/a' 'tier lost a' 'trace record -o /dev/null'; do
  expect_code 1 $verb /proc
done
expect_code 2 gpu
expect_code 2 gpu read
expect_code 2 gpu read --route quick /dev/null
expect_code 2 gpu read --length much /dev/null
expect_code 2 gpu read --host --gpu 0 /dev/null
expect_code 1 gpu read --host /no/such/file
expect_code 1 gpu read --host /proc
expect_code 1 gpu read --host --route mapped "$0"
expect_code 0 gpu read --host --check "$0"
expect_code 0 gpu read --check "$0"
# The value of docs/gpu.md.
scratch=$(mktemp)
head -c 10000 /dev/zero | tr '\0' a >"$scratch"
said=$("$sluice" gpu read --host --checksum "$scratch") || report "gpu read --checksum fails: $said"
[[ $said == *"checksum fe6589d5bbec4d7a as by read(2)" ]] || report "gpu read --checksum says $said"
said=$("$sluice" gpu read --host --checksum --json "$scratch") || report "gpu read --checksum --json fails: $said"
[[ $said == *'"checksum":"fe6589d5bbec4d7a"'* ]] || report "gpu read --checksum --json says $said"
rm "$scratch"
expect_code 1 gpu read --gpu 99 "$0"
# Without a path it checks every mount of the machine, including mounts of other tests, whose daemons may be dead.
if ((EUID == 0)); then
  unshare --mount bash -c '
    while read -r point; do umount --lazy "$(printf %b "$point")"; done < <(findmnt -rno TARGET -t fuse.sluice | tac)
    exec "$0" doctor' "$sluice" >/dev/null 2>&1 || report "sluice doctor exits $?, not 0"
fi
expect_code 0 doctor --json /
expect_code 0 doctor "$0"
expect_code 1 doctor /no/such/file
expect_code 1 doctor / /
expect_code 2 doctor / / /
expect_code 1 bundle /proc
expect_code 1 bundle --output /no/such/folder/file
expect_code 1 bundle --output "$0"
expect_code 2 bundle / /
# Captured first, here and below: the verb exits with 2, as it should, but `pipefail` would make that a failure.
said=$("$sluice" stats 2>&1 || true)
[[ $said == *"did you mean 'status'"* ]] || report "no help with a misspelt verb: $said"
said=$("$sluice" status --jsn /proc 2>&1 || true)
[[ $said == *"unknown option '--jsn'; did you mean '--json'?"* ]] || report "no help with a misspelt option: $said"
said=$("$sluice" mount --teir=a=/a /proc 2>&1 || true)
[[ $said == *"did you mean '--tier'?"* ]] || report "no help with a misspelt option: $said"
said=$("$sluice" status --colour-of-the-sky /proc 2>&1 || true)
[[ $said == *"unknown option '--colour-of-the-sky'; see"* ]] || report "an unknown option is not named: $said"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check_help PAGE VERB...
check_help() {
  local page=$1 flag help
  shift
  expect_code 0 "$@" -h
  help=$("$sluice" "$@" --help)
  [[ $help == "usage: $name $*"* ]] || report "$* --help is about something else"
  [[ $("$sluice" help "$@") == "$help" ]] || report "help $* is not $* --help"
  [[ $help == *$'\nExit status: 0 '* ]] || report "$* --help does not tell the exit status"
  for flag in $("$sluice" "$@" -h | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -e '--[a-z-]+'); do
    [[ $page == *"\\fB$flag\\fR"* ]] || report "the man page lacks $*'s $flag"
  done
}

# check_program LEAST: of each verb of $sluice, at least LEAST: its help by three names, and its man page, which is made of it.
check_program() {
  local least=$1 name=${sluice##*/} pages page said offered titles verb inner count=0
  pages=$scratch/$name
  "$source/packaging/manuals.sh" "$sluice" "$source/docs/man" "$pages"
  gunzip -r "$pages"
  for page in "$pages"/man*/*; do
    if command -v mandoc >/dev/null; then
      said=$(mandoc -T lint -W warning "$page" | grep -v 'missing date' || true)
      [[ ! $said ]] || report "$said"
    fi
    if command -v groff >/dev/null; then
      said=$(groff -ww -man -Tutf8 "$page" 2>&1 >/dev/null)
      [[ ! $said ]] || report "$page: $said"
    fi
  done
  offered=$("$sluice" --help)
  for verb in $("$sluice" complete '' | cut -f 1 | grep -v '^-'); do
    count=$((count + 1))
    [[ $offered == *"  $verb "* ]] || report "--help lacks the verb $verb"
    page=$(sed 's/\\-/-/g' "$pages/man1/$name-$verb.1")
    grep -qF "$name-$verb (1)" <<<"$(sed 's/\\-/-/g' "$pages/man1/$name.1")" || report "$name.1 lacks the verb $verb"
    titles=$(grep '^\.SH' <<<"$page" | cut -c 5- | paste -s -d,)
    [[ $titles == "NAME,SYNOPSIS,DESCRIPTION,OPTIONS,EXAMPLES,EXIT STATUS,SEE ALSO" ]] || report "$name-$verb.1 has: $titles"
    [[ ! $page =~ $'\n'\.SH[^$'\n']*$'\n'\.SH ]] || report "$name-$verb.1 has an empty section:${BASH_REMATCH[0]}"
    if [[ $("$sluice" "$verb" -h) == "usage: $name $verb <verb>"* ]]; then
      for inner in $("$sluice" complete "$verb" '' | cut -f 1 | grep -v '^-'); do check_help "$page" "$verb" "$inner"; done
    else
      check_help "$page" "$verb"
    fi
  done
  ((count >= least)) || report "only $count verbs of $name were looked at"
}
check_program 16

# The descriptions of the options are those of the table.
"$source/tools/update-options.sh" --check "$sluice" >&2 || report "descriptions of options are not up to date"
said=$("$sluice" mount --debug gpu_chunck=1MiB --tier a=/a / 2>&1 || true)
[[ $said == *"did you mean 'gpu_chunk'?"* ]] || report "no help with a misspelt debug option: $said"
[[ $("$sluice" mount --help) != *passthrough* ]] || report "mount --help shows a debug option"

if [[ $lab ]]; then
  sluice=$lab
  check_program 4
  expect_code 2 frobnicate
  expect_code 2 gpu-bench
  expect_code 2 gpu-bench --size 5 /tmp
  expect_code 2 gpu-bench --routes scenic /tmp
  expect_code 1 gpu-bench --host --size 1MiB "$0"
  expect_code 1 gpu-bench --host --size 1MiB /no/such/folder/file
  expect_code 2 simulate --trace /dev/null --tiers nvme=1GiB
  expect_code 2 simulate --trace /dev/null --tiers nvme=1GiB,hdd --policy none
  expect_code 1 simulate --trace /dev/null --tiers nvme=1GiB,hdd
  expect_code 2 tracegen --days 0
  expect_code 2 tracegen --scan 1.5
  expect_code 1 tracegen --accesses 10 -o /no/such/folder/file
  expect_code 0 tracegen --accesses 10
  expect_code 2 fsbench
  expect_code 2 fsbench --rounds 0 a=/tmp
  expect_code 2 fsbench --only no-such-row a=/tmp
  expect_code 0 fsbench --list
fi
((failures == 0))
