# SPDX-License-Identifier: BSD-2-Clause
"""An agent of NIXL with the backend SLUICE, for the tests of the plugin. NIXL_PLUGIN_DIR must name the plugin's folder."""
import itertools
import random

from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

NAMES = (f"agent{i}" for i in itertools.count())


class Agent:
    def __init__(self, **config):
        self.name = next(NAMES)
        self.nixl = nixl_agent(self.name, nixl_agent_config(backends=["SLUICE"], **config))

    def register(self, kind, address, length, device, metadata=""):
        return self.nixl.register_memory([(address, length, device, metadata)], kind, backends=["SLUICE"])

    def prepare(self, operation, blocks, device, memory="DRAM"):
        """`blocks` are (address, offset in the file, length) or (address, offset, length, device of the file)."""
        to = self.nixl.get_xfer_descs([(b[0], b[2], 0) for b in blocks], memory)
        files = self.nixl.get_xfer_descs([(b[1], b[2], b[3] if len(b) > 3 else device) for b in blocks], "FILE")
        return self.nixl.initialize_xfer(operation, to, files, self.name, backends=["SLUICE"])

    def wait(self, handle, state="PROC"):
        while state == "PROC":
            state = self.nixl.check_xfer_state(handle)
        return state

    def run(self, operation, blocks, device=0, memory="DRAM"):
        handle = self.prepare(operation, blocks, device, memory)
        try:
            return self.wait(handle, self.nixl.transfer(handle))
        finally:
            self.nixl.release_xfer_handle(handle)


def threaded():
    return {"sync_mode": nixl_thread_sync_t.NIXL_THREAD_SYNC_RW}


def pieces(rng: random.Random, size, count):
    """`count` disjoint ranges (offset, length) of a whole with `size` bytes, in random order."""
    cuts = sorted(rng.sample(range(size + 1), 2 * count))
    out = [(a, b - a) for a, b in zip(cuts[::2], cuts[1::2])]
    rng.shuffle(out)
    return out
