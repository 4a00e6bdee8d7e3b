#!/usr/bin/env bash
# Run by systemd in boot.sh: starts, kills and restarts sluice@pool with a file open, and removes the package while it runs.
# The last line of /packages/result is "passed".
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
# This shell is not part of the unit: it sees the mount only if the sandbox does not hide it.
echo hello >/mnt/pool/file
[[ $(cat /tiers/fast/file) == hello ]] || fail "the file is not on the tier"
sluice top --once /mnt/pool >/dev/null
[[ $(status StatusText) == "mounted at /mnt/pool" ]] || fail "the status is '$(status StatusText)'"

# The unit is not restarted after a mistake in the configuration.
sed 's/^mountpoint/mountpont/' /etc/sluice/pool.toml >/etc/sluice/typo.toml
! systemctl start sluice@typo || fail "a typo is mounted"
systemctl is-failed --quiet sluice@typo || fail "a typo is tried again: $(systemctl is-active sluice@typo)"
systemctl reset-failed sluice@typo
rm /etc/sluice/typo.toml

# A reload takes options over, with a file open; a mistake in the configuration changes nothing.
exec 7</mnt/pool/file
daemon=$(status MainPID)
sed -i '1i bandwidth = "7MiB"' /etc/sluice/pool.toml
systemctl reload sluice@pool || fail "no reload"
sed -i '1i bandwdth = "8MiB"' /etc/sluice/pool.toml
! systemctl reload sluice@pool || fail "a typo is reloaded"
sed -i 1d /etc/sluice/pool.toml
sluice reload /mnt/pool | grep -qx "nothing has changed" || fail "the first reload took nothing over"
[[ $(status MainPID) == "$daemon" ]] || fail "a reload restarted the service"
exec 7<&-

# Killed with a file open: the dead mount is removed and the pool is mounted again.
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

# A pool that does not answer stops, too.
daemon=$(sluice status --json /mnt/pool | grep -oE '"pid": *[0-9]+' | grep -oE '[0-9]+')
kill -STOP "$daemon"
timeout 10 systemctl stop sluice@pool || fail "a stopped daemon keeps the service from stopping"
! grep -q fuse.sluice /proc/mounts || fail "still mounted after a stop"
systemctl start sluice@pool
[[ $(cat /mnt/pool/file) == hello ]] || fail "not mounted again after a stop"

# An upgrade keeps the pool mounted, a removal unmounts it.
now=$(status MainPID)
dpkg -i /packages/*.deb >/dev/null
[[ $(status MainPID) == "$now" ]] || fail "an upgrade restarted the service"
dpkg --purge sluice-lab sluice libsluice-dev python3-sluice libsluice1 >/dev/null
! grep -q fuse.sluice /proc/mounts || fail "still mounted after a removal"
[[ ! -e /var/lib/sluice && $(cat /tiers/fast/file) == hello ]] || fail "a purge removes the state, and only that"
echo passed
