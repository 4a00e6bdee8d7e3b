"""A headless Chromium, driven over a pair of pipes (--remote-debugging-pipe): the DevTools protocol without any library.

Browser() starts one with a profile of its own; close() ends it. It keeps what must not happen in `problems`: exceptions,
errors on the console, violations of the content security policy, and `requests`, the addresses that pages asked for.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib


def find():
    """The path of a Chromium, or None."""
    return os.environ.get("SLUICE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    def __init__(self):
        self.problems = []
        self.requests = []
        self._profile = tempfile.mkdtemp(prefix="sluice-chromium-")
        self._last_id = 0
        self._input = b""
        theirs_in, self._out = self._pipe()
        self._in, theirs_out = self._pipe()
        # Chromium reads from descriptor 3 and writes to 4; the shell redirects our pipes there.
        arguments = [find(), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self._profile}",
                     "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
                     "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-', "chromium", *arguments],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self):
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _pipe():
        """A pipe whose descriptors are well above those that the browser uses."""
        low = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in low]
        for fd in low:
            os.close(fd)
        return high

    def close(self):
        try:
            self._call("Browser.close", {}, session=None)
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, **parameters):
        return self._call(method, parameters, self._session)

    def _call(self, method, parameters, session, timeout=60):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer is None:
                raise RuntimeError(f"Chromium did not answer {method} in {timeout} s")
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self, deadline):
        """The next message; None at the deadline. Events are recorded."""
        while b"\0" not in self._input:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                return None
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self._input += piece
        line, _, self._input = self._input.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event, about):
        if event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + json.dumps(about["args"])[:500])
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{about['entry'].get('source')}: {about['entry']['text']} {about['entry'].get('url', '')}")
        elif event == "Page.javascriptDialogOpening":
            self.problems.append("a dialog opened: " + about["message"])
            # Not answered, because waiting for the answer would block; the page is broken anyway.
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition, what=None, timeout=60):
        deadline = time.monotonic() + timeout
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise AssertionError(f"not in {timeout} s: {what or condition}; the page says:\n"
                                     + self.run("document.body.innerText"))
            self._receive(time.monotonic() + 0.05)

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def latency(self, milliseconds):
        """Delays each request from now on."""
        self.call("Network.emulateNetworkConditions", offline=False, latency=milliseconds, downloadThroughput=-1, uploadThroughput=-1)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name},
                                                          {"name": "prefers-reduced-motion", "value": "reduce"}])

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key], **text)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """Clicks the element with the mouse."""
        x, y = self.run(f"""(() => {{
            const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: 'center'}});
            const box = node.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, height=None):
        """A screenshot of the whole page, or of its first `height` pixels. Leaves the page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        # Reduced to 256 colours, which is a third of the size. Done on an empty page, because the policy of our page forbids it.
        self.open("about:blank")
        picture = self.run(_QUANTIZE.replace("IMAGE", image))
        pixels, palette = base64.b64decode(picture["pixels"]), bytes(picture["palette"])
        width, height = picture["width"], picture["height"]
        rows = b"".join(b"\0" + pixels[i * width:(i + 1) * width] for i in range(height))

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        with open(path, "wb") as out:
            out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
                      + chunk(b"PLTE", palette) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


# Chooses at most 256 frequent and distinct colours, and the nearest of them for each pixel.
_QUANTIZE = """(async () => {
  const bitmap = await createImageBitmap(await (await fetch('data:image/png;base64,IMAGE')).blob());
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
  canvas.drawImage(bitmap, 0, 0);
  const {data} = canvas.getImageData(0, 0, bitmap.width, bitmap.height);
  const counts = new Map(), pixels = new Uint8Array(data.length / 4);
  const color = (i) => data[4 * i] << 16 | data[4 * i + 1] << 8 | data[4 * i + 2];
  for (let i = 0; i < pixels.length; ++i) counts.set(color(i), (counts.get(color(i)) ?? 0) + 1);
  const distance = (a, b) => (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2;
  const colors = [...counts].sort((a, b) => b[1] - a[1]).map(([each]) => [each >> 16, each >> 8 & 255, each & 255]);
  const palette = [];
  for (const each of colors)
    if (palette.length < 256 && palette.every((one) => distance(one, each) > 60)) palette.push(each);
  const nearest = new Map(colors.map((each) => [each[0] << 16 | each[1] << 8 | each[2],
    palette.reduce((best, one, i) => distance(one, each) < distance(palette[best], each) ? i : best, 0)]));
  for (let i = 0; i < pixels.length; ++i) pixels[i] = nearest.get(color(i));
  let text = '';
  for (let i = 0; i < pixels.length; i += 32768) text += String.fromCharCode(...pixels.subarray(i, i + 32768));
  return {pixels: btoa(text), palette: palette.flat(), width: bitmap.width, height: bitmap.height};
})()"""
