#!/usr/bin/env python3
"""web_test.py SLUICE: tests the page of `sluice web` in a real Chromium, on a mount with hostile file names.

Exit 77: this machine lacks root, /dev/fuse or Chromium (1 if SLUICE_REQUIRE names it)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import browser as chromium

SLUICE = os.environ.get("SLUICE_BIN") or sys.argv[1]
MIB = 1 << 20

# As bytes, because one of these names is not valid UTF-8.
HOSTILE = [
    b"<img src=x onerror=window.pwned=1>.bin",
    b"\"><script>window.pwned=1<\\script>",
    b"quote' & \"amp;&lt;.txt",
    b"new\nline\tand\x1b[31mcolour",
    "right\u202egnp.exe".encode(),
    b"not-utf8-\xff\xfe",
    b"javascript:window.pwned=1",
    b"%2e%2e%2f%00",
]
DIRECTORIES = [b"<svg onload=window.pwned=1>", b"dir-\xff", b"plain dir"]


def skip(what, why):
    print("skipped:", why)
    sys.exit(1 if what in os.environ.get("SLUICE_REQUIRE", "").split(",") else 77)


# Lists visible texts whose contrast with their background is too low.
POOR_CONTRAST = """(() => {
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgb(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  // The background of the page shows through transparent elements.
  const behind = ground(document.body);
  const opacity = (node) => node ? getComputedStyle(node).opacity * opacity(node.parentElement) : 1;
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement, style = getComputedStyle(node);
    if (!texts.currentNode.data.trim() || !node.getClientRects().length) continue;
    const color = rgb(node instanceof SVGElement ? style.fill : style.color);
    const part = opacity(node);
    const [a, b] = [color, ground(node)].map((each) =>
      light(behind.map((under, i) => part * each[i] + (1 - part) * under)));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${texts.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""


class Pool:
    """A mount of two tiers with hostile names on both."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="web.", dir=os.environ.get("SLUICE_TEST_DIR"))
        self.mountpoint = os.path.join(self.folder, "mnt")
        os.mkdir(self.mountpoint)
        for tier in ("fast", "slow"):
            for directory in [b"", *DIRECTORIES]:
                os.makedirs(os.path.join(self.folder.encode(), tier.encode(), directory), exist_ok=True)
        for number, name in enumerate(HOSTILE):
            self._write(("fast", "slow")[number % 2], b"", name, (number + 4) * MIB)
        for directory in DIRECTORIES:
            for number, name in enumerate(HOSTILE[:6]):
                self._write("slow", directory, name, (number + 1) * MIB)
        os.symlink("/etc", f"{self.folder}/fast/link")
        self.mount()
        self.use(HOSTILE[0], 40)

    def use(self, name, times):
        for _ in range(times):
            os.close(os.open(os.path.join(self.mountpoint.encode(), name), os.O_RDONLY))

    def _write(self, tier, directory, name, size):
        with open(os.path.join(self.folder.encode(), tier.encode(), directory, name), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def mount(self):
        subprocess.run([SLUICE, "mount", "--tier", f"fast={self.folder}/fast", "--tier", f"slow={self.folder}/slow",
                        "--state", f"{self.folder}/state", self.mountpoint], check=True)

    def umount(self):
        # Retried, because a request of the page may keep the mount busy.
        for _ in range(20):
            if subprocess.run([SLUICE, "umount", self.mountpoint], capture_output=True).returncode == 0:
                return
        subprocess.run(["umount", "-l", self.mountpoint], check=False)

    def remove(self):
        self.umount()
        shutil.rmtree(self.folder)


def tile(label):
    return f"[...document.querySelectorAll('#map .tile')].find((each) => each.ariaLabel.startsWith({label!r}))"


def check_looks(page):
    """The page fits its width and has enough contrast, at both widths and in both colour schemes."""
    for width in (390, 1280):
        page.resize(width, 900)  # not as a mobile device, which would zoom out to fit the page
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            page.wait(f"innerWidth === {width} && matchMedia('(prefers-color-scheme: {scheme})').matches")
            page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            overflow = page.run("document.documentElement.scrollWidth - innerWidth")
            wide = page.run("[...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > innerWidth)"
                            ".map((each) => each.outerHTML.slice(0, 120)).slice(0, 3).join('; ')")
            assert overflow <= 0, f"at {width} px the page is {overflow} px too wide: {wide}"
            poor = page.run(POOR_CONTRAST)
            assert poor == [], f"at {width} px, {scheme}, too little contrast: {poor}"


def check_names(page):
    text = page.run("document.body.innerText")
    for shown in ("<img src=x onerror=window.pwned=1>.bin", "new\\x0aline\\x09and\\x1b[31mcolour", "right\\xe2\\x80\\xaegnp.exe"):
        assert shown in text, f"{shown} is not on the page:\n{text}"
    assert "\u202e" not in text
    assert page.run("document.images.length") == 1, "a name became an image"
    assert page.run("document.scripts.length") == 1, "a name became a script"


def check_map(page):
    """The map can be used with mouse and keyboard, for directories of any name."""
    for directory in DIRECTORIES:
        shown = directory.decode("utf-8", "replace")
        page.run(tile(shown + "/") + ".id = 'chosen'")
        if directory == b"plain dir":
            page.run("document.getElementById('chosen').focus()")
            page.press("Enter")
        else:
            page.click("#chosen")
        page.wait("document.querySelectorAll('#crumbs button').length === 2", f"the map goes into {shown}")
        assert page.run("document.querySelector('#crumbs').innerText").endswith(shown)
        page.wait("document.querySelectorAll('#map .tile').length === 6")
        page.wait("document.activeElement.classList.contains('tile')", "the keyboard focus stays in the map")
        page.run(tile("not-utf8-") + ".id = 'chosen'")
        page.click("#chosen")
        page.wait("document.querySelector('#story dl')?.innerText.includes('slow')", "a file in it has a story")
        page.click("#crumbs button")
        page.wait("document.querySelectorAll('#crumbs button').length === 1")
        page.wait(tile("not-utf8-"))


def check_path(page):
    """A hostile name is escaped in the input field, and asking again explains the same file."""
    for name, value in (("right", "/right\\xe2\\x80\\xaegnp.exe"), ("new", "/new\\x0aline\\x09and\\x1b[31mcolour"),
                        ("not-utf8-", "/not-utf8-\ufffd\ufffd")):
        page.run(tile(name) + f".id = '{name}'")
        for button in ("#" + name, "#ask button"):
            page.run("document.getElementById('story').replaceChildren()")
            page.click(button)
            page.wait("document.querySelector('#story dl')", f"the story of {value} by {button}")
            shown = page.run("document.getElementById('path').value")
            assert shown == value, f"{shown} for {value}"


def check_focus(pool, page):
    """Updates keep the keyboard focus."""
    page.run("document.querySelector('#hottest .file').focus()")
    before = page.run("document.getElementById('hottest').innerText")
    pool.use(HOSTILE[2], 20)
    page.wait(f"document.getElementById('hottest').innerText !== {json.dumps(before)}", "the hottest files change")
    assert page.run("document.activeElement.closest('#hottest') !== null"), "the keyboard was taken away"


def check_receipts(pool, page):
    """The age of a receipt is updated even if nothing else changes."""
    subprocess.run([SLUICE, "move", "--to", "slow", "--wait", os.path.join(pool.mountpoint.encode(), HOSTILE[4])], check=True,
                   capture_output=True)
    page.wait("document.getElementById('receipts').innerText.includes(' ago')", "the receipt of a move")
    before = page.run("document.getElementById('receipts').innerText")
    page.wait(f"document.getElementById('receipts').innerText !== {json.dumps(before)}", "its age")


def check_story(page, typed, expected):
    page.run("document.getElementById('path').value = ''")
    page.run("document.getElementById('path').focus()")
    page.type(typed)
    page.press("Enter")
    page.wait(f"document.getElementById('story').innerText.includes({expected!r})", f"the story of {typed}: {expected}")


def check_colours(page):
    """The map is coloured by heat or by tier, its boxes have names, and the path of a file in the root has one part."""
    page.click("#by-tier")
    page.wait("document.querySelectorAll('#map .tile.tier0, #map .tile.tier1').length > 0", "colours of tiers")
    assert page.run("document.querySelectorAll('#map-legend .swatch').length") == 2, "a tier is not in the legend"
    check_looks(page)
    page.resize(1280, 900)
    page.click("#by-heat")
    page.wait("document.querySelectorAll('#map .tile.tier0, #map .tile.tier1').length === 0", "colours of heat")
    page.wait("[...document.querySelectorAll('#map .part span')].some((each) => each.innerText)", "names in the boxes")
    assert page.run("""[...document.querySelectorAll('#hottest .file')].every((each) =>
      each.title.lastIndexOf('/') > 0 || each.children.length === 1)"""), "a file of the root has a folder"


def check_parts(page, origin):
    """If one request fails, the page reports it and the other parts still work."""
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source="""
        window.broken = '/api/moves', window.status = 503, window.answer = fetch;
        window.fetch = (what, ...more) => what.startsWith(broken)
          ? Promise.resolve(new Response('{"error": "it is broken"}', {status})) : answer(what, ...more);""")["identifier"]
    page.open(origin)
    page.wait("document.getElementById('trouble').innerText.includes('it is broken')")
    page.wait("document.querySelectorAll('#map .tile').length >= 9", "the map, without the moves")
    page.run("broken = '/api/tree', status = 404")
    page.wait("document.getElementById('trouble').hidden", "the moves come back")
    page.click("#crumbs button")
    page.wait("document.getElementById('map').innerText.includes('it is broken')", "why there is no map")
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    page.open(origin)
    page.wait("document.querySelectorAll('#map .tile').length >= 9", "the map comes back")


def check_refusals(address):
    """Requests that the page never sends: paths outside of the mount are refused."""
    place, token = address.split("#")
    for path, expected in (("/" + quote(HOSTILE[0]), 200), ("/none", 404), ("/../../etc/passwd", 403), ("/..", 403),
                           ("/link/passwd", 403), ("/plain%20dir/%2e%2e/%2e%2e/state", 403)):
        request = Request(f"{place}api/explain?path={path}", headers={"Authorization": "Bearer " + token})
        try:
            with urlopen(request, timeout=60) as answer:
                code = answer.status
        except HTTPError as error:
            code = error.code
        assert code == expected, f"{path}: {code}"


def check_all(pool, page, address):
    origin = address.split("#")[0]
    page.resize(1280, 900)
    page.open(address)
    page.wait("document.querySelectorAll('#map .tile').length >= 9", "the map", 30)
    page.wait("document.querySelectorAll('#hottest .file').length > 0", "the hottest files")
    assert page.run("document.getElementById('state').textContent") == "serving"
    assert page.run("location.href") == origin, "the token stays in the address"
    check_names(page)
    check_looks(page)
    page.resize(1280, 900)
    page.latency(250)  # a click must work while the page sends requests
    check_map(page)
    page.latency(0)
    check_path(page)
    check_focus(pool, page)
    check_receipts(pool, page)
    check_story(page, "/" + HOSTILE[0].decode(), "opened 40 times")
    check_story(page, pool.mountpoint + "/" + HOSTILE[0].decode(), "opened 40 times")
    check_colours(page)
    check_parts(page, origin)
    assert page.problems == [], page.problems
    # From here on the server refuses requests, which the browser records as problems.
    check_story(page, "/no\\ne", "/no\\x5cne: no such file")

    pool.umount()
    page.wait("document.getElementById('trouble').innerText.includes('does not answer')", "the page notices the end of the mount")
    check_looks(page)
    pool.mount()
    page.wait("document.getElementById('trouble').hidden", "the page recovers")
    page.wait("document.querySelectorAll('#map .tile').length >= 9", "the map recovers", 30)

    page.run("sessionStorage.clear()")
    page.open(origin)
    page.wait("document.getElementById('trouble').innerText.includes('lacks the token')")
    assert page.run("window.pwned") is None, "a name ran as a script"
    for problem in page.problems:
        assert problem.startswith("network: Failed to load resource: the server responded with a status of"), problem
    for request in page.requests:
        assert request.startswith(origin) and urlsplit(address).fragment not in urlsplit(request)._replace(fragment="").geturl(), request


def main():
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        skip("mount", "mounting needs root and /dev/fuse")
    pool = Pool()
    try:
        # With SIGHUP ignored, as nohup does. (nohup itself would redirect stderr to stdout.)
        web = subprocess.Popen([SLUICE, "web", "--port", "0", pool.mountpoint], stdout=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        try:
            address = web.stdout.readline().strip()
            web.send_signal(signal.SIGHUP)
            check_refusals(address)
            if not chromium.find():
                skip("chromium", "there is no Chromium; tools/setup.sh --browser installs it. What needs none passed")
            page = chromium.Browser()
            try:
                check_all(pool, page, address)
            finally:
                page.close()
        finally:
            web.terminate()
            code = web.wait(10)
        assert code == 0, f"sluice web ended with {code}"
    finally:
        pool.remove()
    print("passed")


main()
