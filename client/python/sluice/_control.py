# SPDX-License-Identifier: BSD-2-Clause
"""What a file on a Sluice mount says of itself, and where it is told to be: the attributes user.sluice.*."""
import dataclasses
import errno
import os

from ._file import open as open_file
from ._library import Error

_PREFIX = "user.sluice."
Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Stat:
    """A file or directory of a mount."""
    tier: str  # that it is on; of a directory, all that have a copy, separated by commas
    pin: str | None  # the tier that it is pinned to, itself or by a directory above
    heat: float | None  # its score, decayed to now
    accesses: int | None  # how often it was opened
    location: str | None  # its path on its tier
    gpu: str | None  # the route that a read into a GPU would take, and why


def _get(path: Path, name: str) -> str | None:
    try:
        return os.getxattr(path, _PREFIX + name).decode(errors="surrogateescape")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise Error(error.errno, f"{name} of {path}: {error.strerror}") from None


def _tier_of(path: Path) -> str:
    tier = _get(path, "tier")
    # Attributes of a mount are never listed; one that is was put there by somebody, on some other filesystem.
    if tier is None or _PREFIX + "tier" in os.listxattr(path):
        raise Error(errno.EOPNOTSUPP, f"{path} is not on a Sluice mount: it has no tier")
    return tier


def stat(path: Path) -> Stat:
    """What a mount says about a file. Error (EOPNOTSUPP) for files elsewhere."""
    tier = _tier_of(path)
    heat, accesses = _get(path, "heat"), _get(path, "accesses")
    return Stat(tier, _get(path, "pin"), float(heat) if heat else None, int(accesses) if accesses else None,
                _get(path, "location"), _get(path, "gpu"))


def pin(path: Path, tier: str) -> None:
    """Keeps a file, or all below a directory, on a tier. What is elsewhere moves there in the background."""
    _tier_of(path)  # elsewhere, this would be an attribute like any other
    try:
        os.setxattr(path, _PREFIX + "pin", tier.encode())
    except OSError as error:
        why = f"the mount has no tier {tier!r}" if error.errno == errno.EINVAL else error.strerror
        raise Error(error.errno, f"pin {path}: {why}") from None


def unpin(path: Path) -> None:
    """Takes the pin of a file or directory away. Error (ENODATA) if it has none of its own."""
    _tier_of(path)
    try:
        os.removexattr(path, _PREFIX + "pin")
    except OSError as error:
        why = "it has no pin of its own" if error.errno == errno.ENODATA else error.strerror
        raise Error(error.errno, f"unpin {path}: {why}") from None


def prefetch(path: Path, offset: int = 0, length: int | None = None, promote: bool = False) -> None:
    """As File.prefetch()."""
    with open_file(path) as file:
        file.prefetch(offset, length, promote)
