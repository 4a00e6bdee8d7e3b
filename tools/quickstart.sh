#!/usr/bin/env bash
# Builds Sluice from a fresh clone and mounts a demo pool.
#
#   tools/quickstart.sh [DIR]          set up, build, mount three demo tiers at DIR/mnt (default ./demo)
#   tools/quickstart.sh --stop [DIR]   unmount; the files stay on the tiers in DIR
#
# Needs root, for packages and for the mount. It can be run again at any time.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
sluice=$repo/build/release/bin/sluice

say() { printf '%s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$@" >&2; exit 1; }
show() { printf '\n$ %s\n' "$*"; "$@"; }

stop=
case ${1:-} in
  --stop) stop=1; shift ;;
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  -*) echo "quickstart: unknown option '$1'; allowed: --stop, --help" >&2; exit 2 ;;
esac
(($# <= 1)) || { echo "quickstart: one DIR at most" >&2; exit 2; }
dir=$(realpath -m "${1:-demo}")
mount=$dir/mnt
# The tiers are below a directory that only root can enter, so that users go through the mount. A demo of an earlier version has them in DIR.
tiers=$dir/tiers
[[ ! -e $dir/nvme/.sluice ]] || tiers=$dir
((EUID == 0)) || fail "mounting needs root; try: sudo $0 $*"

is_mounted() { findmnt -n -M "$mount" >/dev/null 2>&1; }
answers() { "$sluice" status --json "$mount" >/dev/null 2>&1; }

if [[ $stop ]]; then
  is_mounted || { say "quickstart: nothing is mounted at $mount"; exit 0; }
  if [[ -x $sluice ]]; then "$sluice" umount "$mount"; else umount "$mount"; fi
  say "Unmounted. Your files are ordinary files in"
  say "  $tiers/nvme  $tiers/ssd  $tiers/hdd"
  say "To mount them again: tools/quickstart.sh ${dir@Q}. Delete $dir when you no longer need them."
  exit 0
fi

if is_mounted && answers; then
  say "quickstart: already mounted at $mount"
else
  [[ -e /dev/fuse ]] || fail "/dev/fuse is missing: this kernel or container has no FUSE" \
    "try 'modprobe fuse'; for a container, give it --device /dev/fuse --cap-add SYS_ADMIN"
  "$repo/tools/setup.sh"
  say "quickstart: building (a few minutes the first time)"
  cd "$repo"
  log=$(mktemp)
  cmake --preset release >"$log" 2>&1 || { cat "$log" >&2; fail "cmake failed; see above"; }
  if [[ -t 1 ]]; then
    cmake --build --preset release --target sluice sluice_client || fail "the build failed; see above"
  else
    cmake --build --preset release --target sluice sluice_client >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "the build failed; see above"; }
  fi
  rm -f "$log"

  # A killed daemon leaves a dead mount.
  if is_mounted; then "$sluice" umount "$mount"; fi
  mkdir -p "$dir"/{mnt,state}
  [[ $tiers == "$dir" ]] || install -d -m 700 "$tiers"
  mkdir -p "$tiers"/{nvme,ssd,hdd}
  show "$sluice" mount --tier nvme="$tiers/nvme" --tier ssd="$tiers/ssd" --tier hdd="$tiers/hdd" --state "$dir/state" "$mount"
fi

# Demo files: the documents of the project.
mkdir -p "$mount/docs"
cp -r "$repo/README.md" "$repo/docs/." "$mount/docs/"
file=docs/README.md
tier=$(getfattr --only-values -n user.sluice.tier "$mount/$file" 2>/dev/null) ||
  fail "cannot read the tier of $mount/$file; see $dir/state/sluice.log"

show ls -l "$mount/docs"
show getfattr --absolute-names -n user.sluice.tier "$mount/$file"
say "It is an ordinary file on that tier:"
show ls -l "$tiers/$tier/$file"
show "$sluice" status "$mount"
say "Pin a folder to the slowest tier, run a pass, and explain why a file is there:"
show "$sluice" pin hdd "$mount/docs/man"
show "$sluice" tier run "$mount"
show "$sluice" explain "$mount/docs/man/sluice.toml.5"

say "Read a file into GPU memory (host memory without a GPU) and check the bytes:"
show "$sluice" gpu read --check "$mount/$file"
show getfattr --absolute-names -n user.sluice.gpu "$mount/$file"

if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then gpu="with a GPU"; else gpu="without a GPU"; fi
cat <<MESSAGE

The mount is up ($gpu). Three directories under $tiers represent three kinds of disk. Try:

  cp -a /usr/share/doc $mount/               use it like any directory
  $sluice status $mount
  $sluice plan $mount              show what would move, and why
  getfattr -n user.sluice.location $mount/$file
  tools/quickstart.sh --stop ${dir@Q}   unmount; the files stay

For Python, so that \`import sluice\` works in this shell (docs/python.md):

  export PYTHONPATH=$(printf %q "$repo/client/python") SLUICE_LIBRARY=$(printf %q "$repo/build/release/lib/libsluice.so.1")

With your own disks: $sluice mount --tier nvme=/nvme --tier hdd=/hdd /mnt/pool  (docs/configuration.md)
MESSAGE
