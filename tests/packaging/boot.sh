#!/usr/bin/env bash
# boot.sh ROOT: starts the systemd of ROOT, which runs service.sh and ends. REQUIRES: its own mount, PID and cgroup
# namespaces, and devices in ROOT/dev.
set -euo pipefail
root=$1
mount --rbind "$root" "$root" # newer versions of systemd need / to be a mount point
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
cat >"$root/etc/systemd/system/try.service" <<'EOF'
[Service]
ExecStart=/bin/bash /packages/service.sh
EOF
# `container` keeps it from setting up hardware.
exec env -i container=other PATH=/usr/sbin:/usr/bin chroot "$root" /lib/systemd/systemd --unit=try.service --log-target=journal
