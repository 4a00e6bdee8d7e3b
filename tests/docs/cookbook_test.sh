#!/usr/bin/env bash
# cookbook_test.sh SLUICE PAGE: runs the blocks of a page, such as docs/cookbook.md, in order, as a reader would type them.
#
#   ```sh               is run by one bash for all blocks, with `set -e`
#   ```LANG file=PATH   is written to PATH
#   needs=PROGRAM,...   in the info string: the block is left out if a program is not installed
#   <!-- test: ... -->  is run too, but not shown to readers: what they have already, and what must be true now
#
# Every other block is only to be read, and must be ```text.
#
# All this happens in mount, process and network namespaces of its own, in a root whose /etc, /var and /root are copies in memory, with
# small disks at /nvme, /ssd, /ssd2, /hdd and /backup. $TESTS is the folder of this script. When the test ends, however it does, the
# kernel ends its processes and removes its mounts and loop devices. Exit 77: this machine can't do that (1 if SLUICE_REQUIRE names mount).
set -euo pipefail
skip() {
  echo "skipped: $1"
  case ,${SLUICE_REQUIRE:-}, in *,mount,*) exit 1 ;; esac
  exit 77
}

# Writes the blocks as one script: what is run, and what is written to files.
script_of() { # PAGE
  python3 - "$1" <<'END'
import re, shlex, shutil, sys

def missing(words):
    return ", ".join(each for each in words.get("needs", "").split(",") if each and not shutil.which(each))

runs = 0
lines = enumerate(open(sys.argv[1], encoding="utf-8"), 1)
for number, line in lines:
    if line.startswith("<!-- test"):
        while not line.endswith("-->\n"):
            line += next(lines)[1]
        needs, code = re.fullmatch(r"<!-- test([^:]*):(.*)-->\n", line, re.DOTALL).groups()
        if not missing(dict(word.split("=", 1) for word in needs.split())):
            print(f"step {number} {shlex.quote(code)}\n{code}")
    if not (start := re.fullmatch(r"```(\w+)(.*)\n", line)):
        continue
    words = dict(word.split("=", 1) for word in start[2].split())
    block = []
    for _, line in lines:
        if line == "```\n":
            break
        block.append(line)
    if lacks := missing(words):
        print(f"echo 'line {number} is left out: there is no {lacks}'")
    elif "file" in words:
        end = "END_OF_FILE"
        print(f"mkdir -p $(dirname {words['file']}); cat >{words['file']} <<'{end}'\n{''.join(block)}{end}")
        if start[1] == "yaml":
            print(f"check_yaml {words['file']}")
    elif start[1] == "sh":
        runs += 1
        print(f"step {number} {shlex.quote(''.join(block))}\n{''.join(block)}")
    elif start[1] != "text":
        sys.exit(f"line {number}: a block is sh, text, or has file=PATH")
print(f"echo {runs} blocks were run")
END
}

# Makes the root that the blocks see, in the namespaces, and runs them there.
inside() {
  local root=$folder/root each
  mount -t tmpfs -o mode=755 cookbook "$root"
  mkdir "$root"/{mnt,mnt/pool,nvme,ssd,ssd2,hdd,backup,proc,run,tmp,.disks,.bin,.old}
  chmod 1777 "$root/tmp"
  cp "$sluice" "$root/.bin/sluice"
  cp "$folder/script" "$root/.script"
  cp -r "$(dirname "$0")" "$root/.tests"
  for each in /*; do
    [[ ! -e $root$each && ! -L $root$each ]] || continue
    if [[ -L $each ]]; then
      cp -P "$each" "$root$each"
    elif [[ -d $each ]]; then
      mkdir "$root$each"
      mount --rbind "$each" "$root$each"
    fi
  done
  for each in etc var root; do
    mkdir -p "$root/.over/$each"/{upper,work}
    mount -t overlay -o "lowerdir=/$each,upperdir=$root/.over/$each/upper,workdir=$root/.over/$each/work" cookbook "$root/$each"
  done
  mount -t proc proc "$root/proc"
  rm -rf "$root"/{etc,var/lib}/sluice
  mkdir -p "$root/var/lib/containers"
  mount -t tmpfs cookbook "$root/var/lib/containers" # podman can't use overlayfs over overlayfs
  for each in nvme ssd ssd2 hdd backup; do
    truncate -s 64M "$root/.disks/$each"
    mkfs.ext4 -q -F "$root/.disks/$each"
    mount -o loop "$root/.disks/$each" "$root/$each" || exit 77 # the loop device goes with the mount
  done
  ip link set lo up || true # only the servers need it
  cd "$root"
  pivot_root . .old
  umount -l .old
  exec env -i PATH="/.bin:$PATH" HOME=/root TESTS=/.tests LC_ALL=C.UTF-8 TERM=dumb chroot . bash -c '
    set -eu
    umask 022
    step() { number=$1 && echo "line $1: $2"; }
    check_yaml() {
      python3 -c "import yaml" 2>/dev/null || return 0
      python3 -c "import sys, yaml; list(yaml.safe_load_all(open(sys.argv[1])))" "$1"
    }
    # An image without a registry, and without cgroups, because crun refuses some layouts of them.
    prepare_podman() {
      local program
      mkdir -p /etc/containers /tmp/image
      printf "[containers]\ncgroups = \"disabled\"\n" >/etc/containers/containers.conf
      umount /sys/fs/cgroup/unified 2>/dev/null || true
      for program in /bin/ls /bin/cat; do cp --parents -L $program $(ldd $program | grep -o "/[^ ]*") /tmp/image; done
      tar -C /tmp/image -c . | podman import - docker.io/library/debian:12
    }
    eventually() {
      local try
      for try in {1..100}; do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
      "$@"
    }
    is_offline() { sluice status /mnt/pool | grep -q "^$1 .*offline"; }
    has_no_files() { [[ ! $(find "$1" -name .sluice -prune -o -type f -print) ]]; }
    stop() { pkill -x "$1" && while pgrep -x "$1" >/dev/null; do sleep 0.1; done; }
    failed() { echo "FAILED: line $number" && tail -n 5 /var/lib/sluice/*/sluice.log; }
    trap "(( \$? == 0 )) || failed" EXIT
    cd /root
    . /.script' </dev/null
}

if [[ ${1:-} == --inside ]]; then
  sluice=$2 folder=$3
  inside
  exit
fi

sluice=$(realpath "$1") page=$2
((EUID == 0)) || skip "mounting needs root"
[[ -e /dev/fuse ]] || skip "/dev/fuse does not exist"
folder=$(mktemp -d -p "${SLUICE_TEST_DIR:-${TMPDIR:-/tmp}}" cookbook.XXXXXX)
trap 'rm -rf --one-file-system "$folder"' EXIT
mkdir "$folder/root"
script_of "$page" >"$folder/script"
unshare --mount --pid --net --fork --kill-child true 2>/dev/null || skip "there are no namespaces"
status=0
unshare --mount --pid --net --fork --kill-child "$0" --inside "$sluice" "$folder" || status=$?
((status != 77)) || skip "there are no loop devices"
exit $status
