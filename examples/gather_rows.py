#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""gather_rows.py FILE: creates a table of 10,000 rows of 64 floats in FILE, then reads and changes rows by number.

With an index on a GPU the rows come there, read by the GPU itself once the file is in the page cache: torch.randint(..., device="cuda").
Needs libsluice and numpy.
"""
import sys

import numpy

import sluice

ROWS, DIM = 10_000, 64
table = numpy.arange(ROWS * DIM, dtype=numpy.float32).reshape(ROWS, DIM)
table.tofile(sys.argv[1])

index = numpy.random.default_rng(1).integers(0, ROWS, 5000)  # in any order, with duplicates
with sluice.open(sys.argv[1], "r+") as file:
    rows = file.gather(index, dim=DIM, dtype=numpy.float32)
    assert (rows == table[index]).all()
    print(f"gathered {rows.shape[0]} rows of {rows.shape[1]}")

    file.scatter(index, rows * 0.5)
    table[index] = rows * 0.5
    assert (file.gather(numpy.arange(ROWS), dim=DIM, dtype=numpy.float32) == table).all()
    print("and wrote them back, halved")

    try:
        file.gather([ROWS], dim=DIM, dtype=numpy.float32)
    except IndexError as error:
        print("a missing row:", error)
