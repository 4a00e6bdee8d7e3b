# SPDX-License-Identifier: BSD-2-Clause
import errno
import os
import time

import pytest

import sluice


def test_files_outside_a_mount_raise_an_error(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    for use in (lambda: sluice.stat(path), lambda: sluice.pin(path, "a"), lambda: sluice.unpin(path)):
        with pytest.raises(sluice.Error, match="not on a Sluice mount") as error:
            use()
        assert error.value.errno == errno.EOPNOTSUPP
    assert os.listxattr(path) == []


def test_attribute_with_that_name_is_not_a_mount(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    try:
        os.setxattr(path, "user.sluice.tier", b"a")
    except OSError as error:
        pytest.skip(f"no attributes here: {error}")
    with pytest.raises(sluice.Error, match="not on a Sluice mount"):
        sluice.pin(path, "a")


def test_missing_file_raises_an_error(tmp_path):
    with pytest.raises(sluice.Error) as error:
        sluice.stat(tmp_path / "none")
    assert error.value.errno == errno.ENOENT


def test_stat_on_a_mount(mount):
    path = mount / "file"
    path.write_bytes(b"abc")
    stat = sluice.stat(path)
    assert stat.pin is None
    assert stat.heat is not None and stat.heat >= 0
    assert stat.accesses is not None and stat.accesses >= 1
    assert stat.location is not None and open(stat.location, "rb").read() == b"abc"
    assert stat.gpu
    with sluice.open(path) as file:
        assert file.route(bytearray(1)).tier == stat.tier
    assert sluice.stat(mount).tier


def test_pins(mount):
    """On a mount with tiers a and b."""
    path = mount / "file"
    path.write_bytes(b"abc")
    assert sluice.stat(path).tier == "a"
    with pytest.raises(sluice.Error, match="no tier 'none'"):
        sluice.pin(path, "none")
    sluice.pin(path, "b")
    assert sluice.stat(path).pin == "b"
    deadline = time.monotonic() + 30
    while sluice.stat(path).tier != "b" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sluice.stat(path).tier == "b"
    with sluice.open(path) as file:
        assert file.read() == b"abc"
        file.prefetch(promote=True)
    sluice.unpin(path)
    assert sluice.stat(path).pin is None
    with pytest.raises(sluice.Error, match="no pin of its own"):
        sluice.unpin(path)
