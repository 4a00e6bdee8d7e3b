# SPDX-License-Identifier: BSD-2-Clause
import numpy as np
import pytest

import sluice

PATTERN = bytes(range(251)) * 4000

# Of the first bytes of PATTERN, with xxhash, by the definition in docs/gpu.md.
KNOWN = {
    0: 0x2d06800538d394c2,
    1: 0x113425e2d3c1afc3,
    3: 0xee5798d67d881290,
    8: 0x9e6179ae326c1580,
    16: 0xa5e077f0c8fbd466,
    17: 0x811ac9223aae38be,
    128: 0xd82a7e51e8bd8cb3,
    129: 0x6c5273ee3553abe1,
    240: 0x285f0b7331ffdbac,
    241: 0x789540184c7668ff,
    1_000: 0x4d008c8e78d6acdc,
    4_095: 0x0f2b65c257c12eea,
    4_096: 0x6326d1a712c30996,
    4_097: 0xa2621a7ab50b6209,
    1_000_000: 0x8af8c47b29aa3173,
}


def test_values_are_the_documented_ones(folder):
    path = folder / "file"
    for length, value in KNOWN.items():
        path.write_bytes(PATTERN[:length])
        assert sluice.checksum(PATTERN[:length]) == value, length
        assert sluice.checksum(path) == sluice.checksum(str(path)) == value, length


def test_values_are_those_of_xxhash(folder):
    xxhash = pytest.importorskip("xxhash")
    for length in (*range(300), 5000, 123_456):
        content = PATTERN[:length]
        sums = b"".join(xxhash.xxh3_64_digest(content[at:at + 4096])[::-1] for at in range(0, length, 4096))
        assert sluice.checksum(content) == xxhash.xxh3_64_intdigest(sums), length


def test_ranges(folder):
    path = folder / "file"
    path.write_bytes(PATTERN)
    array = np.frombuffer(PATTERN, np.uint8)
    with sluice.open(path) as file, sluice.register(bytearray(PATTERN)) as buffer:
        for offset, length in ((0, 1000), (1, 4096), (5000, 100_000), (len(PATTERN), 0)):
            expected = sluice.checksum(PATTERN[offset:offset + length])
            assert sluice.checksum(array, offset, length) == sluice.checksum(path, offset, length) == expected
            assert file.checksum(offset, length) == buffer.checksum(offset, length) == expected
        assert file.checksum(7) == buffer.checksum(7) == sluice.checksum(PATTERN[7:])
        assert file.checksum(len(PATTERN) - 3, 100) == sluice.checksum(PATTERN[-3:])  # up to the end of the file


def test_arguments_are_checked(folder):
    with pytest.raises(ValueError, match="exceed"):
        sluice.checksum(b"abc", 1, 3)
    with pytest.raises(ValueError, match="exceed"):
        sluice.checksum(b"abc", 4)
    with pytest.raises(ValueError, match="between 0"):
        sluice.checksum(b"abc", -1)
    with pytest.raises(TypeError, match="whole number"):
        sluice.checksum(b"abc", 1.5)
    with pytest.raises(TypeError, match="no usable memory"):
        sluice.checksum(7)
    with pytest.raises(FileNotFoundError):
        sluice.checksum(folder / "missing")
