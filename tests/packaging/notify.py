#!/usr/bin/env python3
"""notify.py CONFIG MOUNTPOINT: acts like systemd with sluice@.service, and checks the notifications of the daemon."""
import os
import signal
import socket
import subprocess
import sys

config, mountpoint = sys.argv[1:]


def is_mounted() -> bool:
    with open("/proc/mounts") as mounts:
        return any(line.split()[1] == mountpoint for line in mounts)


def start(name: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(60)
    manager.bind("\0" + name[1:] if name.startswith("@") else name)
    daemon = subprocess.Popen(["sluice", "mount", "--foreground", "--config", config], stderr=subprocess.DEVNULL,
                              env={**os.environ, "NOTIFY_SOCKET": name})
    heard = manager.recv(4096).decode().split("\n")
    assert heard == ["READY=1", f"STATUS=mounted at {mountpoint}"], heard
    assert is_mounted()
    return daemon, manager


# Stop without open files.
daemon, manager = start("/tmp/notify")
subprocess.run(["sluice", "umount", "--config", config], check=True)
assert manager.recv(4096).startswith(b"STOPPING=1")
assert daemon.wait(60) == 0
assert not is_mounted()

# Stop with an open file: unmounting fails, and SIGTERM ends the daemon anyway.
daemon, manager = start("@sluice-packaging")
with open(f"{mountpoint}/file") as file:
    failed = subprocess.run(["sluice", "umount", "--config", config], stderr=subprocess.PIPE)
    assert failed.returncode == 1 and b"busy" in failed.stderr, failed
    daemon.send_signal(signal.SIGTERM)
    assert manager.recv(4096).startswith(b"STOPPING=1")
    assert daemon.wait(60) == 0, daemon.returncode
    assert not is_mounted()
manager.close()

# Killed daemon: the dead mount is removed although a file is open, and the next mount succeeds.
daemon, manager = start("@sluice-packaging")
with open(f"{mountpoint}/file") as file:
    daemon.kill()
    daemon.wait()
    assert is_mounted()
    subprocess.run(["sluice", "umount", "--lazy", "--config", config], check=True)
    assert not is_mounted()
    manager.close()
    daemon, manager = start("@sluice-packaging")
    with open(f"{mountpoint}/file") as again:
        assert again.readline() == "hello from a package\n"
subprocess.run(["sluice", "umount", "--config", config], check=True)
assert daemon.wait(60) == 0
