#!/usr/bin/env bash
# The part of run.sh that runs inside a fresh root. The packages are in /packages.
set -euo pipefail
step() { echo "packaging: $(. /etc/os-release && echo "$VERSION_CODENAME"): $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND" >&2' ERR
export DEBIAN_FRONTEND=noninteractive

# Lists all files except those that the system itself changes and those on mounts.
files() { find / -xdev \( -path /proc -o -path /run -o -path /dev -o -path /packages -o -path /tmp -o -path /var/cache -o -path /var/log \
  -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /etc/ld.so.cache \) -prune -o -print | sort; }
mounted() { grep -q " $1 fuse.sluice " /proc/mounts; }

step "the wheel, without the packages"
python3 -m venv /tmp/venv
/tmp/venv/bin/pip install -q --no-index --disable-pip-version-check /packages/*.whl
# use_wheel FILE TEXT
use_wheel() { /tmp/venv/bin/python -I -c 'import sluice, sys; assert sluice.open(sys.argv[1]).read().decode() == sys.argv[2]' "$@" || fail "the wheel can't read $1"; }
echo plain >/tmp/plain
use_wheel /tmp/plain $'plain\n'

files >/tmp/before

step "installing"
apt-get -q -y -o Dpkg::Use-Pty=0 install /packages/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; fail "apt-get install"; }
for package in sluice sluice-lab libsluice1 libsluice-dev python3-sluice; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' $package) == installed ]] || fail "$package is not installed"
done
missing=$(ldd /usr/bin/sluice /usr/bin/sluice-lab /usr/lib/*/libsluice.so.1 /usr/lib/*/libsluice_hf3fs.so.1 | grep 'not found' || true)
[[ ! $missing ]] || fail "libraries are missing: $missing"
outside=$(ldd /usr/bin/sluice /usr/bin/sluice-lab | grep '=> /' | grep -v /sluice/private/ | awk '{print $1}' | grep -vEf /packages/system-libraries || true)
[[ ! $outside ]] || fail "linked with libraries that no package of Sluice depends on: $outside"
sluice --version
sluice doctor >/dev/null
[[ $(sluice complete mou) == mount* ]] || fail "no completion"
sluice-lab tracegen --accesses 1000 -o /tmp/trace.csv
sluice-lab simulate --trace /tmp/trace.csv --tiers fast=5%,slow >/dev/null
for file in man/man1/sluice.1.gz man/man1/sluice-status.1.gz man/man1/sluice-lab.1.gz man/man1/sluice-lab-simulate.1.gz man/man5/sluice.toml.5.gz man/man8/mount.sluice.8.gz man/man3/libsluice.3.gz \
  doc/sluice/README.md doc/sluice/docs/operations.md sluice/grafana-dashboard.json sluice/prometheus-alerts.yml doc/sluice/examples/gpu_read.c; do
  [[ -s /usr/share/$file ]] || fail "/usr/share/$file is missing"
done
[[ $(dpkg-query -W -f '${Maintainer}' sluice) == *?' <'?*@?*'>' ]] || fail "no maintainer: $(dpkg-query -W -f '${Maintainer}' sluice)"
[[ -e $(echo /usr/lib/*/sluice/libcufile.so.0) ]] || fail "the cuFile drop-in is missing"

step "mounting with mount(8) and fstab"
mkdir -m 700 /tiers
sluice init --tier fast=/tiers/fast --tier slow=/tiers/slow --mountpoint /mnt/pool
mount -t sluice /etc/sluice/pool.toml /mnt/pool
mounted /mnt/pool || fail "not mounted"
echo "hello from a package" >/mnt/pool/file
grep -q package /mnt/pool/file
[[ -f /tiers/fast/file ]] || fail "the file is not on its tier"
sluice status /mnt/pool >/dev/null
sluice doctor /mnt/pool >/dev/null

step "Python and C"
cd /tmp # a directory without a folder `sluice`, which Python would import
python3 - <<'EOF'
import importlib.metadata, sluice
assert importlib.metadata.version("sluice") == sluice.library_version()
with sluice.open("/mnt/pool/file") as file:
    into = bytearray(21)
    file.read_into(into)
assert into == b"hello from a package\n", into
print("python:", sluice.library_version())
EOF
[[ $(SLUICE_ACCELERATE=1 python3 -c 'import sys; print("_sluice_accelerate" in sys.modules)') == True ]] || fail "SLUICE_ACCELERATE"
[[ $(python3 -c 'import sys; print("_sluice_accelerate" in sys.modules)') == False ]] || fail "imported without SLUICE_ACCELERATE"
use_wheel /mnt/pool/file $'hello from a package\n'
if command -v gcc >/dev/null; then
  cat >/tmp/program.c <<'EOF'
#include <fcntl.h>
#include <sluice/ioctl.h>
#include <sluice/sluice.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  static char bytes[5];
  sluice_file *file;
  sluice_buffer *buffer;
  if (sluice_open("/mnt/pool/file", O_RDONLY, 0, &file) < 0) return puts(sluice_error()), 1;
  if (sluice_buffer_register(bytes, sizeof bytes, &buffer) < 0) return puts(sluice_error()), 1;
  if (sluice_read(file, buffer, 0, sizeof bytes, 0, NULL) != sizeof bytes) return puts(sluice_error()), 1;
  return memcmp(bytes, "hello", 5) != 0;
}
EOF
  # shellcheck disable=SC2046
  gcc -Wall -Werror /tmp/program.c -o /tmp/program $(pkg-config --cflags --libs sluice)
  /tmp/program || fail "a program that uses libsluice"
fi

sluice umount /mnt/pool
! mounted /mnt/pool || fail "still mounted"
echo "/etc/sluice/pool.toml /mnt/pool sluice noatime,nofail,x-systemd.requires-mounts-for=/tiers 0 0" >>/etc/fstab
mount -a
grep -q '^/etc/sluice/pool.toml /mnt/pool fuse.sluice [^ ]*noatime' /proc/mounts || fail "fstab's options are not used"
mount -a || fail "a second mount -a"
[[ $(grep -c ' /mnt/pool ' /proc/mounts) == 1 ]] || fail "mounted twice"
if mount -t sluice /etc/sluice/none.toml /mnt 2>/tmp/said; then fail "mounted without a configuration"; else code=$?; fi
((code == 32)) || fail "mount exits with $code"
grep -q none.toml /tmp/said || fail "it does not say what is missing: $(cat /tmp/said)"
umount /mnt/pool
while grep -qsx sluice /proc/[0-9]*/comm; do sleep 0.1; done

step "as the service does"
python3 /packages/notify.py /etc/sluice/pool.toml /mnt/pool
if command -v systemd-analyze >/dev/null; then
  said=$(systemd-analyze verify --man=no sluice@pool.service 2>&1 | grep -i sluice || true)
  [[ ! $said ]] || fail "systemd-analyze: $said"
  systemctl enable sluice@pool 2>/dev/null
  [[ -L /etc/systemd/system/multi-user.target.wants/sluice@pool.service ]] || fail "the unit can't be enabled"
fi

step "upgrading while mounted"
mount /mnt/pool
exec 7</mnt/pool/file
daemon=$(sluice status --json /mnt/pool | grep -oE '"pid": *[0-9]+' | grep -oE '[0-9]+')
# Installing the same version again runs the same scripts as an upgrade.
dpkg -i /packages/*.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg -i"; }
grep -q "^/mnt/pool: sluice .* -> sluice " /tmp/dpkg.log || fail "the mount is not upgraded: $(cat /tmp/dpkg.log)"
[[ $daemon != "$(sluice status --json /mnt/pool | grep -oE '"pid": *[0-9]+' | grep -oE '[0-9]+')" ]] || fail "the daemon was not restarted"
read -r line <&7
[[ $line == "hello from a package" ]] || fail "an open file did not survive the upgrade: $line"
exec 7<&-
echo more >>/mnt/pool/file
sluice umount /mnt/pool

step "purging"
sed -i '\,/mnt/pool,d' /etc/fstab
rm /etc/sluice/pool.toml
# Must be kept: a tier whose users have a directory `db`, and a directory that is not a state directory.
mkdir -p /var/lib/sluice/nvme/.sluice /var/lib/sluice/nvme/db /var/lib/sluice/other/db
touch /var/lib/sluice/nvme/db/CURRENT /var/lib/sluice/other/db/mine
dpkg --purge sluice-lab sluice libsluice-dev python3-sluice libsluice1 >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg --purge"; }
grep -q "hello from a package" /tiers/fast/file || fail "the user's file is gone"
[[ -f /var/lib/sluice/nvme/db/CURRENT && -f /var/lib/sluice/other/db/mine ]] || fail "purge removed files of users: $(ls -AR /var/lib/sluice)"
[[ $(ls -A /var/lib/sluice) == $'nvme\nother' ]] || fail "left behind: $(ls -A /var/lib/sluice)"
rm -rf /var/lib/sluice /tiers /mnt/pool
files >/tmp/after
left=$(comm -13 /tmp/before /tmp/after)
[[ ! $left ]] || fail "left behind: $left"
