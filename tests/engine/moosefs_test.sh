#!/usr/bin/env bash
# moosefs_test.sh SLUICE: `sluice origin check` and `scan` on two mounts of MooseFS 3.0. A master, a chunk server and the two
# clients run in a network namespace of their own, which nothing can leave, and end with it.
set -euo pipefail
sluice=$1
skip() { echo "moosefs: skipped: $*"; exit 77; }

((EUID == 0)) || skip "it must be root"
[[ -e /dev/fuse ]] || skip "/dev/fuse does not exist"
for program in mfsmaster mfschunkserver mfsmount ip jq; do
  PATH=$PATH:/usr/sbin:/sbin command -v $program >/dev/null || skip "$program is not installed: tools/setup.sh --engines"
done
version=$(dpkg-query -W -f '${Version}' moosefs-master 2>/dev/null || true)
[[ $version == 3.0.* ]] || skip "MooseFS is '$version', not 3.0"

if [[ ! ${SLUICE_IN_NAMESPACE:-} ]]; then
  scratch=$(mktemp -d -p "${SLUICE_TEST_DIR:-/tmp}" sluice-moosefs.XXXXXX)
  code=0
  SLUICE_IN_NAMESPACE=$scratch unshare --net --mount --pid --fork --kill-child=KILL --mount-proc "$0" "$@" || code=$?
  rm -rf --one-file-system "$scratch"
  exit $code
fi
scratch=$SLUICE_IN_NAMESPACE
PATH=$PATH:/usr/sbin:/sbin
address=10.77.0.1 # MooseFS refuses 127.0.0.1
failures=0
report() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

start_servers() {
  ip link set lo up
  ip address add $address/32 dev lo
  mkdir "$scratch"/{master,chunks,disk,one,two,three}
  cp /var/lib/mfs/metadata.mfs.empty "$scratch/master/metadata.mfs"
  echo '* / rw,alldirs,admin,maproot=0:0' >"$scratch/exports.cfg"
  echo "$scratch/disk" >"$scratch/disks.cfg"
  local common="WORKING_USER = root
WORKING_GROUP = root
LIMIT_GLIBC_MALLOC_ARENAS = 2
NICE_LEVEL = 0"
  cat >"$scratch/master.cfg" <<END
$common
DATA_PATH = $scratch/master
EXPORTS_FILENAME = $scratch/exports.cfg
MATOML_LISTEN_HOST = $address
MATOCS_LISTEN_HOST = $address
MATOCL_LISTEN_HOST = $address
LOCK_MEMORY = 0
END
  cat >"$scratch/chunks.cfg" <<END
$common
DATA_PATH = $scratch/chunks
HDD_CONF_FILENAME = $scratch/disks.cfg
HDD_LEAVE_SPACE_DEFAULT = 64MiB
MASTER_HOST = $address
CSSERV_LISTEN_HOST = $address
MASTER_RECONNECTION_DELAY = 1
END
  mfsmaster -c "$scratch/master.cfg" start
  mfschunkserver -c "$scratch/chunks.cfg" start
}

# client NAME [OPTION]
client() { mfsmount "$scratch/$1" -H $address ${2:+-o "$2"}; }

# The master takes data when the chunk server has registered.
wait_for_writes() {
  local try
  for try in {1..300}; do
    if echo x >"$scratch/one/first" && sync "$scratch/one/first"; then return; fi 2>/dev/null
    sleep 0.1
  done
  echo "MooseFS does not store anything" >&2
  exit 1
}

expect() { # FILTER: true for the last answer
  [[ $(jq "$1" <<<"$answer") == true ]] || report "not so: $1, of $answer"
}

check_passes() {
  answer=$("$sluice" origin check --json --races 2000 --with "$scratch/two" "$scratch/one") || report "check exits with $?"
  expect '.close_to_open == "yes"'
  expect '.filesystem.source | startswith("mfs#")'
  expect '.race.rounds == 2000'
  expect '.race.stale == 0'
  # The test must bite: stat alone does not tell.
  expect '.race.stale_by_stat > 2000'
  # A copy is used while the file does not change.
  expect '.race.hits > 0.9 * .race.rounds'
  expect '[.abilities[] | select(.verdict == "weak") | .name] == ["NOREPLACE", "EXCHANGE", "O_TMPFILE", "times", "rewrites", "SEEK_HOLE"]'
  expect '[.abilities[] | select(.verdict == "fail")] == []'
  expect '.abilities[] | select(.name == "flock") | .words == "a lock excludes other machines"'
  jq -c .race <<<"$answer"
}

check_fails_with_cached_attributes() {
  local code=0
  answer=$("$sluice" origin check --json --races 200 --with "$scratch/three" "$scratch/one") || code=$?
  ((code == 1)) || report "check exits with $code where attributes are cached"
  expect '.close_to_open == "no"'
  expect '.race.stale > 0'
  expect '.advice | contains("mfsxattrcacheto=0")'
  jq -c .race <<<"$answer"
}

scan_is_seen_by_the_other() {
  mkdir "$scratch/one/tree"
  echo a >"$scratch/one/tree/old"
  echo b >"$scratch/one/tree/new"
  touch -d '1 hour ago' "$scratch/one/tree/old"
  answer=$("$sluice" origin scan "$scratch/one/tree")
  [[ $answer == *'stamped 1 file'*'left out 1 file that'* ]] || report "scan says $answer"
  answer=$("$sluice" origin scan "$scratch/two/tree")
  [[ $answer == *'stamped 0 files, 1 had a stamp'* ]] || report "scan on the other client says $answer"
}

start_servers >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
for each in one two; do client $each mfsxattrcacheto=0; done >>"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
client three >>"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
wait_for_writes
check_passes
check_fails_with_cached_attributes
scan_is_seen_by_the_other
[[ ! $(ls -d "$scratch"/one/.sluice-check* 2>/dev/null) ]] || report "a scratch directory is left"
umount "$scratch"/{one,two,three}
((failures == 0))
