#!/usr/bin/env bash
# Makes the screenshots of `sluice web` and `sluice top` in docs/images, with a demo pool on loop devices.
#
#   tools/screenshots.sh [SLUICE]    the program to show (default build/release/bin/sluice)
#
# Needs root, /dev/fuse and Chromium (tools/setup.sh --browser installs it). Takes about a minute and a half.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
sluice=${1:-$repo/build/release/bin/sluice}
fail() { echo "screenshots: $*" >&2; exit 1; }
((EUID == 0)) || fail "loop devices and mounts need root"
[[ -x $sluice ]] || fail "$sluice does not exist; build it first: cmake --workflow --preset release"

# In its own mount namespace, so that /mnt of the machine is not touched and nothing stays mounted.
if [[ ! ${SLUICE_PICTURES:-} ]]; then SLUICE_PICTURES=1 exec unshare --mount "$0" "$sluice"; fi
folder=$(mktemp -d -p /var/tmp sluice-pictures.XXXXXX)
mount -t tmpfs tmpfs /mnt
clean() {
  "$sluice" umount /mnt/pool 2>/dev/null || true
  umount /mnt/nvme /mnt/ssd /mnt/hdd 2>/dev/null || true
  rm -rf --one-file-system "$folder"
}
trap clean EXIT

for tier in nvme=6G ssd=14G hdd=40G; do
  name=${tier%=*}
  mkdir "/mnt/$name"
  truncate -s "${tier#*=}" "$folder/$name.img"
  mkfs.ext4 -q -m 0 "$folder/$name.img"
  mount -o loop "$folder/$name.img" "/mnt/$name"
done
mkdir /mnt/pool
"$sluice" mount --tier nvme=/mnt/nvme --tier ssd=/mnt/ssd --tier hdd=/mnt/hdd --bandwidth 24MiB --state "$folder/state" /mnt/pool
PYTHONDONTWRITEBYTECODE=1 python3 "$repo/tests/web/pictures.py" "$sluice" "$repo/docs/images"
ls -l "$repo/docs/images"
