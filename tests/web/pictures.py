"""pictures.py SLUICE OUT: fills the pool at /mnt/pool with typical files of a GPU server, uses it, and takes the
screenshots of the documentation. Run by tools/screenshots.sh."""

import base64
import os
import re
import subprocess
import sys
import time
from html import escape

from browser import Browser

sluice, out = sys.argv[1:]
pool = "/mnt/pool"
MIB = 1 << 20

# Path, tier, MiB, uses.
FILES = [
    ("models/llama-3-8b/model-00001-of-00002.safetensors", "nvme", 1450, 340),
    ("models/llama-3-8b/model-00002-of-00002.safetensors", "nvme", 1180, 310),
    ("models/llama-3-8b/tokenizer.json", "nvme", 9, 410),
    ("models/mixtral/model-00001.safetensors", "ssd", 2300, 42),
    ("models/mixtral/model-00002.safetensors", "ssd", 2200, 38),
    ("models/mixtral/model-00003.safetensors", "ssd", 1900, 35),
    ("models/gpt2/model.safetensors", "hdd", 520, 2),
    ("models/whisper-large/model.safetensors", "hdd", 2900, 6),
    ("training/run-41/checkpoint-1000.pt", "hdd", 1900, 1),
    ("training/run-41/checkpoint-2000.pt", "hdd", 1900, 1),
    ("training/run-42/checkpoint-1000.pt", "ssd", 1600, 12),
    ("training/run-42/checkpoint-2000.pt", "nvme", 1300, 120),
    ("datasets/imagenet/val.tar", "ssd", 1400, 64),
    ("backups/2026-09.tar.zst", "hdd", 3600, 0),
    ("backups/2026-10.tar.zst", "hdd", 3900, 0),
    ("home/notebooks/eval.ipynb", "nvme", 3, 180),
    ("home/results.parquet", "ssd", 310, 22),
]
FILES += [(f"datasets/imagenet/train-{i:02}.tar", "hdd", 700 + 40 * (i % 5), 3 + i) for i in range(10)]
FILES += [(f"datasets/laion/part-{i}.parquet", "hdd", 260 + 70 * i, 0) for i in range(5)]
FILES += [(f"home/archive/{2019 + i}.zip", "hdd", 420 + 90 * i, 0) for i in range(6)]


WORKED_WITH = ("models/llama-3-8b/model-00001-of-00002.safetensors", "models/mixtral/model-00001.safetensors",
               "home/results.parquet", "datasets/imagenet/val.tar")


def fill():
    block = os.urandom(MIB)
    for path, tier, mib, _ in FILES:
        there = os.path.join("/mnt", tier, path)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        fd = os.open(there, os.O_CREAT | os.O_WRONLY, 0o644)
        # Unwritten extents are fast to allocate, read and move. Files that are shown being moved must be written.
        written = 400 if path in WORKED_WITH else 0
        for _ in range(min(written, mib)):
            os.write(fd, block)
        os.posix_fallocate(fd, 0, mib * MIB)
        os.close(fd)


def use():
    for path, _, _, uses in FILES:
        for _ in range(uses):
            os.close(os.open(os.path.join(pool, path), os.O_RDONLY))


def work(seconds):
    """Reads and writes files, for the curves."""
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turn += 1
        path, tier = (("models/llama-3-8b/model-00001-of-00002.safetensors", "nvme"),
                      ("models/mixtral/model-00001.safetensors", "ssd"))[turn % 2]
        # Drop it from the page cache, so that the disk is used.
        fd = os.open(os.path.join("/mnt", tier, path), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        fd = os.open(os.path.join(pool, path), os.O_RDONLY)
        for at in range(0, (20 + 15 * (turn % 7)), 4):
            os.pread(fd, 4 * MIB, at * MIB)
        os.close(fd)
        if turn % 3 == 0:
            with open(os.path.join(pool, "training/run-42/log.jsonl"), "wb") as log:
                log.write(os.urandom(24 * MIB))
                log.flush()
                os.fsync(log.fileno())
        time.sleep(0.25)


def terminal_page(text):
    """Converts the output of a terminal, with colours, to a page."""
    colors = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y"}
    body = ""
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if not code:
            body += escape(part)
        elif code[1] in ("", "0"):
            body += "</span>"
        else:
            body += '<span class="' + " ".join(colors.get(each, "") for each in code[1].split(";")) + '">'
    return ("<!doctype html><meta charset=utf-8><style>body{margin:0;padding:18px 22px;background:#10161c;color:#d6dee6;"
            "font:14px/1.45 'DejaVu Sans Mono',monospace}pre{margin:0;font:inherit}.b{font-weight:700;color:#fff}.d{color:#8593a1}"
            ".r{color:#ff8a80}.g{color:#6fd39b}.y{color:#e9c46a}</style><pre>" + body + "</pre>")


def main():
    fill()
    use()
    subprocess.run(["sync"], check=True)
    subprocess.run([sluice, "plan", pool], check=True, stdout=subprocess.DEVNULL)
    web = subprocess.Popen([sluice, "web", "--port", "0", pool],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = web.stdout.readline().strip()
    browser = Browser()
    try:
        browser.resize(1280, 900)
        browser.scheme("light")
        browser.open(address)
        browser.wait("document.querySelectorAll('#map .tile').length > 3")
        work(35)
        os.setxattr(os.path.join(pool, "home/results.parquet"), "user.sluice.tier", b"nvme")
        work(16)
        os.setxattr(os.path.join(pool, "datasets/imagenet/val.tar"), "user.sluice.tier", b"nvme")
        work(6)
        browser.run("[...document.querySelectorAll('#hottest .file')].find(n => n.title.includes('00001-of')).click()")
        browser.wait("document.querySelectorAll('#story dt').length > 2")
        top = subprocess.run([sluice, "top", "--once", "--color", "always", pool], check=True, capture_output=True, text=True,
                             env={**os.environ, "COLUMNS": "100"}).stdout
        browser.screenshot(os.path.join(out, "web-desktop-light.png"))
        browser.scheme("dark")
        browser.resize(390, 844, phone=True)
        browser.open(address)
        work(12)
        browser.wait("document.querySelectorAll('#map .tile').length > 3")
        browser.screenshot(os.path.join(out, "web-phone-dark.png"), height=1400)
        browser.resize(900, 300)
        browser.open("data:text/html;base64," + base64.b64encode(terminal_page(top.rstrip("\n")).encode()).decode())
        browser.wait("document.querySelector('pre')")
        browser.screenshot(os.path.join(out, "top.png"))
    finally:
        browser.close()
        web.terminate()
        web.wait()


main()
