#!/usr/bin/python3
"""btrfs_tree.py - a small reader of sound btrfs images, to know where things are.

    btrfs_tree.py nodes IMAGE...      every tree block: LOGICAL LEVEL OWNER TREE, and each copy as DEVICE:PHYSICAL
    btrfs_tree.py where LOGICAL IMAGE...   the copies and parities of a logical address
    btrfs_tree.py selftest            on tests/images/btrfs: all is found, all sums of all copies are right

It verifies nothing while it reads and takes the first copy of everything: it is for images that nobody damaged yet.
Written from the format's description, knowing nothing of ashlar's reader.
"""

import hashlib
import os
import struct
import sys
import tempfile
from collections import namedtuple

from btrfs_files import TABLE

MAGIC = b"_BHRfS_M"
SUPERS = [64 << 10, 64 << 20, 256 << 30]
STRIPE = 64 << 10

ROOT_TREE, EXTENT_TREE, CHUNK_TREE, FS_TREE, CSUM_TREE, STRIPE_TREE = 1, 2, 3, 5, 7, 12
EXTENT_CSUM_OBJECT = (1 << 64) - 10
EXTENT_DATA, EXTENT_CSUM, ROOT_ITEM, EXTENT_ITEM, METADATA_ITEM, CHUNK_ITEM = 108, 128, 132, 168, 169, 228

DATA, SYSTEM, METADATA = 1, 2, 4
RAID0, RAID1, DUP, RAID10, RAID5, RAID6, RAID1C3, RAID1C4 = (1 << bit for bit in range(3, 11))

SUM_BYTES = {0: 4, 1: 8, 2: 32, 3: 32}

Stripe = namedtuple("Stripe", "device physical")
Chunk = namedtuple("Chunk", "logical length kind stripes sub_stripes")
Node = namedtuple("Node", "logical level owner generation tree data")
# Where one byte of a logical address is. `row` names what is rebuilt together: None, or (chunk, row).
Place = namedtuple("Place", "copies parities row")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def xxhash64(data):
    """XXH64 with seed 0."""
    mask = (1 << 64) - 1
    p1, p2, p3, p4, p5 = (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )

    def turn(value, count):
        return (value << count | value >> 64 - count) & mask

    def lane(sum_, word):
        return turn((sum_ + word * p2) & mask, 31) * p1 & mask

    at, end = 0, len(data)
    if end >= 32:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while end - at >= 32:
            lanes = [lane(*pair) for pair in zip(lanes, struct.unpack_from("<4Q", data, at))]
            at += 32
        hash_ = sum(turn(value, count) for value, count in zip(lanes, (1, 7, 12, 18))) & mask
        for value in lanes:
            hash_ = ((hash_ ^ lane(0, value)) * p1 + p4) & mask
    else:
        hash_ = p5
    hash_ = (hash_ + end) & mask
    while end - at >= 8:
        hash_ = (turn(hash_ ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & mask
        at += 8
    if end - at >= 4:
        hash_ = (turn(hash_ ^ struct.unpack_from("<I", data, at)[0] * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        hash_ = turn(hash_ ^ byte * p5 & mask, 11) * p1 & mask
    hash_ = (hash_ ^ hash_ >> 33) * p2 & mask
    hash_ = (hash_ ^ hash_ >> 29) * p3 & mask
    return struct.pack("<Q", hash_ ^ hash_ >> 32)


SUMS = {
    0: crc32c,
    1: xxhash64,
    2: lambda data: hashlib.sha256(data).digest(),
    3: lambda data: hashlib.blake2b(data, digest_size=32).digest(),
}


def parse_chunk(logical, data):
    length, _, stripe_bytes, kind = struct.unpack_from("<4Q", data)
    count, sub_stripes = struct.unpack_from("<2H", data, 44)
    assert stripe_bytes == STRIPE
    stripes = [Stripe(*struct.unpack_from("<2Q", data, 48 + 32 * i)) for i in range(count)]
    return Chunk(logical, length, kind, stripes, sub_stripes)


class FileSystem:
    """The images of one file system, all there and sound."""

    def __init__(self, paths):
        self.paths = {}
        self.sizes = {}
        self.files = {}
        for path in paths:
            file = open(path, "rb", buffering=0)
            superblock = os.pread(file.fileno(), 4096, SUPERS[0])
            assert superblock[64:72] == MAGIC, f"{path} has no superblock"
            device = struct.unpack_from("<Q", superblock, 201)[0]
            self.paths[device], self.files[device] = path, file
            self.sizes[device] = os.lseek(file.fileno(), 0, os.SEEK_END)
        self.super = superblock
        self.generation, self.root, self.chunk_root, self.log_root = struct.unpack_from("<4Q", superblock, 72)
        self.sector_bytes, self.node_bytes = struct.unpack_from("<2I", superblock, 144)
        self.sum_kind = struct.unpack_from("<H", superblock, 196)[0]
        self.sum_bytes = SUM_BYTES[self.sum_kind]
        # Where data is, if not where its chunk says: [(first, behind the last, copies of the first)].
        self.chunks, self.roots, self.stripes = [], {}, []
        system = superblock[811 : 811 + struct.unpack_from("<I", superblock, 160)[0]]
        while system:
            logical = struct.unpack_from("<Q", system, 9)[0]
            self.chunks.append(parse_chunk(logical, system[17:]))
            system = system[17 + 48 + 32 * len(self.chunks[-1].stripes) :]
        self.chunks = [parse_chunk(key[2], item) for key, item in self.items(self.chunk_root) if key[1] == CHUNK_ITEM]
        self.roots = {ROOT_TREE: self.root, CHUNK_TREE: self.chunk_root}
        for key, item in self.items(self.root):
            if key[1] == ROOT_ITEM:
                # A snapshot's key has its transaction as offset; a relocation tree's the tree it is of.
                name = key[0] if key[0] != (1 << 64) - 8 else f"reloc-{key[2]}"
                self.roots[name] = struct.unpack_from("<Q", item, 176)[0]
        for key, item in self.items(self.roots[STRIPE_TREE]) if STRIPE_TREE in self.roots else ():
            copies = [Stripe(*pair) for pair in struct.iter_unpack("<2Q", item)]
            self.stripes.append((key[0], key[0] + key[2], copies))

    def supers(self, device):
        return [at for at in SUPERS if at + 4096 <= self.sizes[device]]

    def chunk(self, logical):
        for chunk in self.chunks:
            if chunk.logical <= logical < chunk.logical + chunk.length:
                return chunk
        raise LookupError(f"no chunk has {logical}")

    def place(self, logical):
        chunk = self.chunk(logical)
        offset, stripes = logical - chunk.logical, chunk.stripes
        spread = RAID0 | RAID1 | DUP | RAID10 | RAID1C3 | RAID1C4
        if STRIPE_TREE in self.roots and chunk.kind & (DATA | SYSTEM | METADATA) == DATA and chunk.kind & spread:
            for first, end, copies in self.stripes:
                if first <= logical < end:
                    return Place([Stripe(it.device, it.physical + logical - first) for it in copies], [], None)
            # Nothing was written there: where its chunk has room for it.

        def at(index, row, inside):
            stripe = stripes[index % len(stripes)]
            return Stripe(stripe.device, stripe.physical + row * STRIPE + inside)

        number, inside = divmod(offset, STRIPE)
        if chunk.kind & RAID0:
            return Place([at(number, number // len(stripes), inside)], [], None)
        if chunk.kind & RAID10:
            row, group = divmod(number, len(stripes) // chunk.sub_stripes)
            first = group * chunk.sub_stripes
            return Place([at(first + copy, row, inside) for copy in range(chunk.sub_stripes)], [], None)
        if chunk.kind & (RAID5 | RAID6):
            parities = 2 if chunk.kind & RAID6 else 1
            data = len(stripes) - parities
            row, column = divmod(number, data)
            parity = [at(data + row + index, row, inside) for index in range(parities)]
            return Place([at(column + row, row, inside)], parity, (chunk.logical, row))
        return Place([at(index, 0, offset) for index in range(len(stripes))], [], None)

    def tolerance(self, logical):
        """How many of the copies of a block, or of the devices of a row, may be bad at once."""
        chunk = self.chunk(logical)
        if chunk.kind & (RAID5 | RAID6):
            return 2 if chunk.kind & RAID6 else 1
        return len(self.place(logical).copies) - 1

    def at(self, stripe, length):
        return os.pread(self.files[stripe.device].fileno(), length, stripe.physical)

    def read(self, logical, length):
        out = b""
        while len(out) < length:
            here = logical + len(out)
            part = min(length - len(out), STRIPE - (here - self.chunk(here).logical) % STRIPE)
            out += self.at(self.place(here).copies[0], part)
        return out

    def walk(self, logical, tree, known=None):
        """Yields the tree blocks below one, in order; only those in `known`, if given."""
        if known is not None and logical not in known:
            return
        data = self.read(logical, self.node_bytes)
        generation, owner, count, level = struct.unpack_from("<QQIB", data, 80)
        assert struct.unpack_from("<Q", data, 48)[0] == logical, f"no tree block at {logical}"
        yield Node(logical, level, owner, generation, tree, data)
        if level:
            for index in range(count):
                yield from self.walk(struct.unpack_from("<Q", data, 101 + 33 * index + 17)[0], tree, known)

    def items(self, logical):
        """Yields ((object, type, offset), bytes) in order."""
        for node in self.walk(logical, None):
            if node.level == 0:
                for index in range(struct.unpack_from("<I", node.data, 96)[0]):
                    *key, start, length = struct.unpack_from("<QBQII", node.data, 101 + 25 * index)
                    yield tuple(key), node.data[101 + start : 101 + start + length]

    def nodes(self):
        """Every tree block once, by logical address."""
        # Of a tree that is being dropped (by a relocation) some are freed already.
        known = {logical for logical, _ in self.extents()}
        found = {}
        for tree, root in self.roots.items():
            for node in self.walk(root, tree, known):
                found.setdefault(node.logical, node)
        return found

    def summed(self):
        """Yields (logical, sum) for each sector of data that has a checksum."""
        for key, item in self.items(self.roots[CSUM_TREE]):
            if key[1] == EXTENT_CSUM:
                for index in range(len(item) // self.sum_bytes):
                    yield key[2] + index * self.sector_bytes, item[index * self.sum_bytes :][: self.sum_bytes]

    def extents(self):
        """Yields (logical, length) of what is allocated in block groups, data and tree blocks."""
        for key, _ in self.items(self.roots[EXTENT_TREE]):
            if key[1] == EXTENT_ITEM:
                yield key[0], key[2]
            elif key[1] == METADATA_ITEM:
                yield key[0], self.node_bytes


def selftest():
    assert crc32c(b"123456789") == struct.pack("<I", 0xE3069283)
    assert xxhash64(b"") == struct.pack("<Q", 0xEF46DB3751D8E999)
    assert xxhash64(b"abc") == struct.pack("<Q", 0x44BC2CF5AD770999)
    from btrfs_pack import unpack

    images = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../images/btrfs")
    for name in sorted(os.listdir(images)):
        if not os.path.isdir(f"{images}/{name}"):
            continue
        with tempfile.TemporaryDirectory() as directory:
            system = FileSystem(unpack(f"{images}/{name}", directory))
            sum_of = SUMS[system.sum_kind]
            nodes = system.nodes()
            for tree, root in system.roots.items():
                assert all(node.logical in nodes for node in system.walk(root, tree)), f"{name}: not in the extent tree"
            for node in nodes.values():
                # All copies of a node; those of one stripe's length are in one piece.
                for copy in system.place(node.logical).copies:
                    data = system.at(copy, system.node_bytes)
                    assert data == node.data and sum_of(data[32:])[: system.sum_bytes] == data[: system.sum_bytes], (
                        f"{name}: node {node.logical} on device {copy.device}"
                    )
            sectors = 0
            for logical, expected in system.summed():
                sectors += 1
                for copy in system.place(logical).copies:
                    assert sum_of(system.at(copy, system.sector_bytes)) == expected, f"{name}: data {logical}"
            parity_is_right(system, name)
            print(f"{name}: {len(nodes)} tree blocks, {sectors} sectors of data")


def parity_is_right(system, name):
    """P of every row of a RAID5 or RAID6 in use is the exclusive or of the data."""
    rows = {}
    for logical, length in system.extents():
        for at in range(logical, logical + length, system.sector_bytes):
            place = system.place(at)
            if place.row:
                rows[place.parities[0]] = system.chunk(at)
    for parity, chunk in rows.items():
        inside = parity.physical - next(s.physical for s in chunk.stripes if s.device == parity.device)
        total = 0
        row = inside // STRIPE
        parities = 2 if chunk.kind & RAID6 else 1
        data = len(chunk.stripes) - parities
        for column in range(data):
            logical = chunk.logical + (row * data + column) * STRIPE + inside % STRIPE
            total ^= int.from_bytes(system.at(system.place(logical).copies[0], 4096), "little")
        assert total == int.from_bytes(system.at(parity, 4096), "little"), f"{name}: parity at {parity}"


def main():
    match sys.argv[1:]:
        case ["selftest"]:
            selftest()
        case ["nodes", *paths] if paths:
            system = FileSystem(paths)
            for node in system.nodes().values():
                copies = (f"{copy.device}:{copy.physical}" for copy in system.place(node.logical).copies)
                print(node.logical, node.level, node.owner, node.tree, *copies)
        case ["where", logical, *paths] if paths:
            place = FileSystem(paths).place(int(logical))
            print("copies", *(f"{copy.device}:{copy.physical}" for copy in place.copies))
            print("parities", *(f"{parity.device}:{parity.physical}" for parity in place.parities))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
