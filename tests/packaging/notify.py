#!/usr/bin/env python3
"""notify.py CONFIG MOUNTPOINT: acts like systemd with sluice@.service, and checks the notifications of the daemon."""
import json
import os
import select
import signal
import socket
import subprocess
import sys

config, mountpoint = sys.argv[1:]


def is_mounted() -> bool:
    with open("/proc/mounts") as mounts:
        return any(line.split()[1] == mountpoint for line in mounts)


def heard(manager: socket.socket) -> list[str]:
    """The next message that is not about stored descriptors. A descriptor that comes with one is dropped."""
    while True:
        lines = manager.recv(4096).decode().split("\n")
        if not lines[0].startswith(("FDSTORE", "BARRIER")):
            return lines


def start(name: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(60)
    manager.bind("\0" + name[1:] if name.startswith("@") else name)
    daemon = subprocess.Popen(["sluice", "mount", "--foreground", "--config", config], stderr=subprocess.DEVNULL,
                              env={**os.environ, "NOTIFY_SOCKET": name})
    lines = heard(manager)
    assert lines == ["READY=1", f"STATUS=mounted at {mountpoint}"], lines
    assert is_mounted()
    return daemon, manager


# Stop without open files.
daemon, manager = start("/tmp/notify")
subprocess.run(["sluice", "umount", "--config", config], check=True)
assert heard(manager)[0] == "STOPPING=1"
manager.close()
assert daemon.wait(60) == 0
assert not is_mounted()

# Stop with an open file: unmounting fails, and SIGTERM ends the daemon anyway.
daemon, manager = start("@sluice-packaging")
with open(f"{mountpoint}/file") as file:
    failed = subprocess.run(["sluice", "umount", "--config", config], stderr=subprocess.PIPE)
    assert failed.returncode == 1 and b"busy" in failed.stderr, failed
    daemon.send_signal(signal.SIGTERM)
    assert heard(manager)[0] == "STOPPING=1"
    manager.close()
    assert daemon.wait(60) == 0, daemon.returncode
    assert not is_mounted()

# Killed keeper and daemon: the dead mount is removed although a file is open, and the next mount succeeds.
daemon, manager = start("@sluice-packaging")
with open(f"{mountpoint}/file") as file:
    served_by = json.loads(subprocess.check_output(["sluice", "status", "--json", mountpoint]))["pid"]
    daemon.kill()
    daemon.wait()
    ended = os.pidfd_open(served_by)
    os.kill(served_by, signal.SIGKILL)
    assert select.select([ended], [], [], 60)[0]
    assert is_mounted()
    subprocess.run(["sluice", "umount", "--lazy", "--config", config], check=True)
    assert not is_mounted()
    manager.close()
    daemon, manager = start("@sluice-packaging")
    with open(f"{mountpoint}/file") as again:
        assert again.readline() == "hello from a package\n"
subprocess.run(["sluice", "umount", "--config", config], check=True)
manager.close()
assert daemon.wait(60) == 0
