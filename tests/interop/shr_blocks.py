#!/usr/bin/python3
"""shr_blocks.py - where the blocks of files are on the disks of an array, found by what is in them.

    shr_blocks.py choose FILES FIRST END COUNT WHERE DISK OTHER...  a range of COUNT blocks of a disk, between two bytes, where files
                                                                    have blocks: prints its first byte. WHERE is 0 for the first
                                                                    one, 100 for the last
    shr_blocks.py lost FILES FIRST COUNT DISK MISSING               the files that lose blocks when MISSING is away and this range of
                                                                    another disk, too: those of either in these rows

Nothing about layouts is known here but that each array begins at the same place of all its disks: then a row has the
same place on all of them. The files have random contents, so that a block says whose it is; but where the rest of a row is
zeroes its parity says the same, so the chosen rows have no block twice. A block is 4 KiB.
"""

import os
import sys

BLOCK = 4096


def owners(folder):
    """Each block of the files, the last one filled up with zeroes, and whose it is."""
    known = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                while block := file.read(BLOCK):
                    known[block.ljust(BLOCK, b"\0")] = os.path.relpath(path, folder)
    return known


def blocks(path, first, end):
    with open(path, "rb") as file:
        file.seek(first)
        for at in range(first, end, BLOCK):
            yield at, file.read(BLOCK)


def choose(files, first, end, count, where, *disks):
    known = owners(files)
    sound = {}
    for (at, block), *others in zip(*(blocks(disk, int(first), int(end)) for disk in disks)):
        row = [block] + [other for _, other in others]
        twice = any(row.count(one) > 1 and one in known for one in row)
        sound[at] = (block in known, not twice)
    size = int(count) * BLOCK
    starts = []
    for at in sound:
        rows = [sound.get(row, (False, False)) for row in range(at, at + size, BLOCK)]
        # Within a chunk of 64 KiB, as a real defect is on one disk.
        if at % 65536 + size <= 65536 and rows[0][0] and all(once for _, once in rows):
            starts.append(at)
    assert starts, "no file has blocks there"
    print(starts[(len(starts) - 1) * int(where) // 100])


def lost(files, first, count, disk, missing):
    known = owners(files)
    end = int(first) + int(count) * BLOCK
    found = {known.get(block) for path in (disk, missing) for _, block in blocks(path, int(first), end)}
    print(*sorted(found - {None}), sep="\n")


def main():
    verbs = {"choose": (choose, 8), "lost": (lost, 7)}
    if len(sys.argv) < 2 or sys.argv[1] not in verbs or len(sys.argv) < verbs[sys.argv[1]][1]:
        sys.exit(__doc__)
    verbs[sys.argv[1]][0](*sys.argv[2:])


if __name__ == "__main__":
    main()
