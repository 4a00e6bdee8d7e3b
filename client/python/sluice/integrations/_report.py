# SPDX-License-Identifier: BSD-2-Clause
"""What accelerate() loaded, and what it left to the original functions and why."""
import atexit
import collections
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from .._file import Result

_log = logging.getLogger("sluice")


class _Load:
    def __init__(self) -> None:
        self.bytes, self.seconds = 0, 0.0
        self.routes: collections.Counter[str] = collections.Counter()


class Report:
    """Counts loads by file. Thread-safe."""

    def __init__(self) -> None:
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # another thread may hold it in the parent
        self._loads: dict[str, _Load] = collections.defaultdict(_Load)
        self._reasons: collections.Counter[str] = collections.Counter()
        if os.environ.get("SLUICE_ACCELERATE") == "verbose":
            atexit.register(lambda: print(self.text(), file=sys.stderr))

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def load(self, path: str) -> Iterator[list[Result]]:
        """Counts the results that are put into the list, and the time that the block takes."""
        results: list[Result] = []
        start = time.perf_counter()
        yield results
        with self._lock:
            load = self._loads[path]
            load.seconds += time.perf_counter() - start
            for result in results:
                load.bytes += result.bytes
                load.routes[f"{result.route} in the {'process' if result.in_process else 'daemon'}"] += result.bytes

    def fell_back(self, path: str, reason: BaseException | str) -> None:
        """Logs a reason the first time, without the path, so that a thousand files give one line."""
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        text = text.replace(path, "the file")
        with self._lock:
            self._reasons[text] += 1
            is_first = self._reasons[text] == 1
        if is_first:
            _log.warning("%s is read by the original function: %s", path, text)

    def text(self) -> str:
        with self._lock:
            lines = [f"sluice.accelerate: {len(self._loads)} files read"]
            for path, load in self._loads.items():
                speed = load.bytes / load.seconds / 1e9 if load.seconds else 0
                routes = ", ".join(f"{name} {count / 1e9:.3f} GB" for name, count in load.routes.most_common())
                lines.append(f"  {path}: {load.bytes} bytes in {load.seconds:.3f} s, {speed:.1f} GB/s ({routes})")
            if self._reasons:
                lines.append("left to the original functions:")
                lines += [f"  {count} times: {reason}" for reason, count in self._reasons.most_common()]
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """For tests and measurements."""
        with self._lock:
            routes = sum((load.routes for load in self._loads.values()), collections.Counter[str]())
            return {"files": {path: load.bytes for path, load in self._loads.items()}, "reasons": dict(self._reasons),
                    "routes": dict(routes)}


report = Report()
