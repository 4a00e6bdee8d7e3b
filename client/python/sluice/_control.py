# SPDX-License-Identifier: BSD-2-Clause
"""Tiers, pins and state of files on a Sluice mount: the attributes user.sluice.*."""
import dataclasses
import errno
import os

from ._file import open as open_file
from ._library import Error

_PREFIX = "user.sluice."
Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Stat:
    """The state of a file or directory on a mount."""
    tier: str  # its tier; of a directory, all tiers that have a copy, separated by commas
    pin: str | None  # the tier that it, or a directory above it, is pinned to
    heat: float | None  # its score, decayed to now
    accesses: int | None  # how often it was opened
    location: str | None  # its path on its tier
    gpu: str | None  # the route a GPU read of this file would take, and why


def _error(error: OSError, what: str, path: Path, why: str | None = None) -> Error:
    return Error(error.errno or errno.EIO, f"{what} {path}: {why or error.strerror}", os.fspath(path))


def _get(path: Path, name: str) -> str | None:
    try:
        return os.getxattr(path, _PREFIX + name).decode(errors="surrogateescape")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise _error(error, f"{name} of", path) from None


def _tier_of(path: Path) -> str:
    tier = _get(path, "tier")
    # The mount never lists its attributes. If this one is listed, a user has set it on another
    # filesystem.
    if tier is None or _PREFIX + "tier" in os.listxattr(path):
        raise Error(errno.EOPNOTSUPP, f"{path} is not on a Sluice mount", os.fspath(path))
    return tier


def stat(path: Path) -> Stat:
    """Returns the state of a file on a mount. Error (EOPNOTSUPP) for other files."""
    tier = _tier_of(path)
    heat, accesses = _get(path, "heat"), _get(path, "accesses")
    return Stat(tier, _get(path, "pin"), float(heat) if heat else None, int(accesses) if accesses else None,
                _get(path, "location"), _get(path, "gpu"))


def pin(path: Path, tier: str) -> None:
    """Keeps a file, or everything below a directory, on a tier. Files on other tiers move there in the background."""
    _tier_of(path)  # on another filesystem the attribute would simply be stored
    try:
        os.setxattr(path, _PREFIX + "pin", tier.encode())
    except OSError as error:
        why = f"the mount has no tier {tier!r}" if error.errno == errno.EINVAL else None
        raise _error(error, "pin", path, why) from None


def unpin(path: Path) -> None:
    """Removes the pin of a file or directory. Error (ENODATA) if it has no pin of its own."""
    _tier_of(path)
    try:
        os.removexattr(path, _PREFIX + "pin")
    except OSError as error:
        why = "it has no pin of its own" if error.errno == errno.ENODATA else None
        raise _error(error, "unpin", path, why) from None


def prefetch(path: Path, offset: int = 0, length: int | None = None, promote: bool = False,
             hbm: bool = False) -> None:
    """As File.prefetch()."""
    with open_file(path) as file:
        file.prefetch(offset, length, promote, hbm)
