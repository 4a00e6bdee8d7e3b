# SPDX-License-Identifier: BSD-2-Clause
import asyncio
import errno
import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest

import sluice


def test_many_reads_at_once(path, content):
    async def main():
        with sluice.open(path) as file:
            targets = [bytearray(10_000) for _ in range(200)]
            results = await asyncio.gather(*(file.read_into_async(each, i * 777) for i, each in enumerate(targets)))
            assert all(result.bytes == 10_000 and result.route == "host" for result in results)
            for i, target in enumerate(targets):
                assert target == content[i * 777:i * 777 + 10_000]
                target.append(1)  # no longer locked
    asyncio.run(main())


def test_writing(folder):
    async def main():
        with sluice.open(folder / "new", "w+") as file:
            await asyncio.gather(*(file.write_from_async(b"%09d\n" % i, i * 10) for i in range(100)))
            assert file.read() == b"".join(b"%09d\n" % i for i in range(100))
    asyncio.run(main())


def test_await_raises_the_error(path):
    async def main():
        with sluice.open(path) as file:
            with pytest.raises(sluice.Error) as error:
                await file.write_from_async(b"abc")
            assert error.value.errno == errno.EBADF
            assert str(path) in str(error.value)
            with pytest.raises(ValueError):
                await file.read_into_async(bytearray(10), 0, 11)
            assert (await file.read_into_async(bytearray())).bytes == 0
    asyncio.run(main())


def test_cancelled_read_keeps_its_memory_until_it_is_done(path):
    async def main():
        freed = []
        with sluice.open(path) as file:
            for _ in range(50):
                target = np.empty(9_000_000, np.uint8)
                weakref.finalize(target, freed.append, 1)
                task = asyncio.create_task(file.read_into_async(target))
                await asyncio.sleep(0)
                task.cancel()
                del target
                with pytest.raises(asyncio.CancelledError):
                    await task
                del task
        # Closed during the reads: they are finished, and then everything is released.
        for _ in range(1000):
            gc.collect()
            if len(freed) == 50:
                break
            await asyncio.sleep(0.01)
        assert len(freed) == 50
    asyncio.run(main())


def test_close_lets_reads_in_progress_finish(path, content):
    async def main():
        file = sluice.open(path)
        target = bytearray(len(content))
        task = asyncio.create_task(file.read_into_async(target))
        await asyncio.sleep(0)
        file.close()
        assert (await task).bytes == len(content)
        assert target == content
    asyncio.run(main())


def test_program_may_end_with_reads_in_progress(path):
    program = f"""
import asyncio, sluice
async def main():
    file = sluice.open({str(path)!r})
    tasks = [asyncio.create_task(file.read_into_async(bytearray(9_000_000))) for _ in range(8)]
    await asyncio.sleep(0)
asyncio.run(main())
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
        assert (done.returncode, done.stderr) == (0, "")


def test_request_that_cannot_start_raises_an_error(path):
    program = f"""
import asyncio, errno, sluice
async def main():
    with sluice.open({str(path)!r}) as file:
        try:
            await file._transfer_async(lambda *_: -errno.EAGAIN, bytearray(10), 0, None, 0, writable=True)
        except sluice.Error as error:
            assert error.errno == errno.EAGAIN
        else:
            raise AssertionError
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
