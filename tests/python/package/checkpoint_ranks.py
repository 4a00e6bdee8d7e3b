# SPDX-License-Identifier: BSD-2-Clause
"""checkpoint_ranks.py RANK RANKS RENDEZVOUS FOLDER COMMAND...: one rank of a program that saves or loads a checkpoint.

    save NUMBER             saves the state with this number
    save-forever NUMBER     goes on with the numbers after it
    load NUMBER             loads a state, which must have this number
    load-any                prints the number of the state that it has loaded
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from sluice.integrations.checkpoint import Reader, Writer

rank, ranks, rendezvous, folder, command = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
mesh = init_device_mesh("cpu", (ranks,))


def state(number, placements):
    """All tensors have the number in them; what is sharded depends on `placements`."""
    def whole(*shape, dtype=torch.float32):
        return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 97 + number).to(dtype)

    return {
        "rows": distribute_tensor(whole(101, 33), mesh, [placements[0]]),
        "columns": distribute_tensor(whole(30, 51, dtype=torch.bfloat16), mesh, [placements[1]]),
        "middle": distribute_tensor(whole(5, 41, 7, dtype=torch.int64), mesh, [placements[1]]),
        "replicated": distribute_tensor(whole(1000), mesh, [Replicate()]),
        "plain": whole(7, 7), "scalar": torch.tensor(float(number)), "empty": torch.empty(0, 3),
        "double": whole(6, 5, dtype=torch.complex128), "transposed": whole(20, 30).T,
        "optimizer": {"step": number, "names": [f"name {number}", None]}, "large": whole(200_000),
    }


def loaded(placements):
    found = state(-1, placements)
    dcp.load(found, storage_reader=Reader(folder))
    return found


def check(found, number):
    expected = state(number, (Replicate(), Replicate()))
    for name, value in expected.items():
        mine = found[name]
        if isinstance(mine, DTensor):
            mine, value = mine.full_tensor(), value.full_tensor()
        assert torch.equal(mine, value) if isinstance(value, torch.Tensor) else mine == value, name


def main():
    numbers = [int(word) for word in sys.argv[6:]]
    if command == "save":
        dcp.save(state(numbers[0], (Shard(0), Shard(1))), storage_writer=Writer(folder))
    elif command == "save-forever":
        number = numbers[0]
        while True:
            number += 1
            made = state(number, (Shard(0), Shard(1)))
            print(number, flush=True)
            dcp.save(made, storage_writer=Writer(folder))
    elif command == "load":
        for placements in ((Shard(0), Shard(1)), (Shard(1), Shard(0)), (Replicate(), Replicate())):
            check(loaded(placements), numbers[0])
    else:
        found = loaded((Shard(1), Shard(0)))
        number = found["optimizer"]["step"]
        check(found, number)
        print(number, flush=True)
    dist.barrier()


main()
sys.stdout.flush()
os._exit(0)  # without the threads of gloo, which now and then abort at the end
