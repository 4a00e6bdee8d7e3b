#!/usr/bin/env bash
# What boot.sh has systemd run: sluice@pool is started, killed, restarted with a file open, and removed while it runs. The
# last line of /packages/result is "passed".
exec >/packages/result 2>&1
trap 'systemctl exit --force --force || systemctl poweroff --force --force' EXIT
set -euo pipefail
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
fail() { echo "FAILED: $*"; journalctl --no-pager -u sluice@pool || true; exit 1; }
status() { systemctl show --value -p "$1" sluice@pool; }

dpkg -i /packages/*.deb >/dev/null
mkdir -p -m 700 /tiers
sluice init --tier fast=/tiers/fast --mountpoint /mnt/pool

systemctl enable --now sluice@pool
# This shell is no part of the unit: it sees the mount because the sandbox does not hide it.
echo hello >/mnt/pool/file
[[ $(cat /tiers/fast/file) == hello ]] || fail "the file is not on the tier"
sluice top --once /mnt/pool >/dev/null
[[ $(status StatusText) == "mounted at /mnt/pool" ]] || fail "the status is '$(status StatusText)'"

# A mistake in the configuration is not tried again.
sed 's/^mountpoint/mountpont/' /etc/sluice/pool.toml >/etc/sluice/typo.toml
! systemctl start sluice@typo || fail "a typo is mounted"
systemctl is-failed --quiet sluice@typo || fail "a typo is tried again: $(systemctl is-active sluice@typo)"
systemctl reset-failed sluice@typo
rm /etc/sluice/typo.toml

# Killed, with a file open: the dead mount is cleared away and the pool mounted again.
exec 7</mnt/pool/file
first=$(status MainPID)
kill -KILL "$first"
for ((i = 0; i < 100; i++)); do
  [[ $(status MainPID) != "$first" && $(status ActiveState) == active ]] && break
  sleep 0.1
done
[[ $(cat /mnt/pool/file) == hello ]] || fail "not mounted again after a kill"
[[ $(status NRestarts) == 1 ]] || fail "$(status NRestarts) restarts"
exec 7</mnt/pool/file
systemctl restart sluice@pool || fail "no restart while a file is open"
exec 7<&-
[[ $(cat /mnt/pool/file) == hello ]] || fail "not mounted again after a restart"

# An upgrade leaves it alone, a removal ends it.
now=$(status MainPID)
dpkg -i /packages/*.deb >/dev/null
[[ $(status MainPID) == "$now" ]] || fail "an upgrade restarted the service"
dpkg --purge sluice libsluice-dev python3-sluice libsluice1 >/dev/null
! grep -q fuse.sluice /proc/mounts || fail "still mounted after a removal"
[[ ! -e /var/lib/sluice && $(cat /tiers/fast/file) == hello ]] || fail "a purge removes the state, and only that"
echo passed
