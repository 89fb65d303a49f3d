#!/usr/bin/python3
"""btrfs_stripes.py - file systems with a RAID stripe tree, for which a kernel with CONFIG_BTRFS_EXPERIMENTAL is the judge.

    btrfs_stripes.py scatter IMAGE...       cut the stripes of a RAID1 into parts, and move these within their chunks: the
                                            kernel puts data elsewhere than its chunk says only on zoned devices
    btrfs_stripes.py spoil SEED IMAGE...    spoil copies of data and of tree blocks, some data on all devices; write what was
                                            spoilt as lines "spoilt DEVICE PHYSICAL BYTES"
"""

import struct
import sys

from btrfs_damage import spoil
from btrfs_tree import RAID1, STRIPE_TREE, SUMS, FileSystem

SECTOR = 4096
RAID_STRIPE = 230


def parts(start, length):
    """Cuts a range into one to three, of whole sectors."""
    third = length // 3 // SECTOR * SECTOR
    lengths = [third, third, length - 2 * third] if third else [length]
    for part in lengths:
        yield start, part
        start += part


def scatter(paths):
    system = FileSystem(paths)
    (leaf,) = system.walk(system.roots[STRIPE_TREE], STRIPE_TREE)
    free = {}  # chunk -> the end of what is free in it
    items, moves = [], []
    for index, (start, length) in enumerate(part for first, end, _ in system.stripes for part in parts(first, end - first)):
        chunk = system.chunk(start)
        assert chunk.kind & RAID1
        place = start
        if index % 4 != 3:  # some stay
            place = free.get(chunk.logical, chunk.logical + chunk.length) - length
            free[chunk.logical] = place
            assert place > max(end for _, end, _ in system.stripes if end <= chunk.logical + chunk.length)
        copies = [(stripe.device, stripe.physical + place - chunk.logical) for stripe in chunk.stripes]
        items.append(((start, RAID_STRIPE, length), b"".join(struct.pack("<2Q", *copy) for copy in copies)))
        old = system.place(start).copies
        moves += [(copy, [it for it in old if it.device == copy[0]][0], length) for copy in copies]
    read = [system.at(old, length) for _, old, length in moves]
    files = {device: open(path, "r+b", buffering=0) for device, path in system.paths.items()}

    def write(device, physical, data):
        files[device].seek(physical)
        files[device].write(data)

    for _, old, length in moves:  # what is left there is good for nothing
        write(*old, b"stale..." * (length // 8))
    for (copy, _, _), data in zip(moves, read):
        write(*copy, data)
    node = bytearray(leaf.data[:101]) + bytes(system.node_bytes - 101)
    end = system.node_bytes
    for index, (key, data) in enumerate(items):
        end -= len(data)
        node[end : end + len(data)] = data
        struct.pack_into("<QBQII", node, 101 + 25 * index, *key, end - 101, len(data))
    assert end > 101 + 25 * len(items)
    struct.pack_into("<I", node, 96, len(items))
    node[:32] = SUMS[system.sum_kind](bytes(node[32:])).ljust(32, b"\0")
    for copy in system.place(leaf.logical).copies:
        write(copy.device, copy.physical, node)


def main():
    match sys.argv[1:]:
        case ["scatter", *images] if images:
            scatter(images)
        case ["spoil", seed, *images] if images:
            for it in sorted(spoil(images, seed, lost=2, data=12), key=lambda it: (it.device, it.physical)):
                print("spoilt", it.device, it.physical, it.length)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
