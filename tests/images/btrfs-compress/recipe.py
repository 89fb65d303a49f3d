#!/usr/bin/env python3
"""recipe.py - make the vectors in this directory anew, with this machine's kernel.

Needs root, a kernel with btrfs, loop devices, btrfs-progs. Each vector NAME.bin is what the kernel
stored of a file with the bytes content(SEED, LENGTH): of a regular extent up to the last byte that is
not zero, of an inline one all. Of LZO, those extents are kept in which a segment ends LEFT bytes
before the end of a sector, for each LEFT from 0 to 4: below 4 no length fits there.

vectors.txt has a line for each: NAME COMPRESSION SEED LENGTH RAM_BYTES DISK_NUM_BYTES, which is 0 for
an inline extent.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
SECTOR = 4096
EXTENT = 128 << 10
MASK = (1 << 64) - 1


def content(seed, length):
    """Bytes that compress to about a twentieth: literals, and copies from nearby (xorshift64)."""
    state = seed * 0x9E3779B97F4A7C15 & MASK | 1

    def draw(below):
        nonlocal state
        state ^= state << 13 & MASK
        state ^= state >> 7
        state ^= state << 17 & MASK
        return (state >> 32) % below

    out = bytearray()
    while len(out) < length:
        if not out or draw(4) == 0:
            out += bytes(draw(256) for _ in range(1 + draw(24)))
        else:
            distance = 1 + draw(min(len(out), 1 << draw(13)))
            for _ in range(3 + draw(400)):
                out.append(out[-distance])
    return bytes(out[:length])


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def ends(data):
    """How many bytes are left in the sector behind each segment of LZO but the last."""
    total, at, left = struct.unpack_from("<I", data)[0], 4, []
    while at < total:
        at += 4 + struct.unpack_from("<I", data, at)[0]
        left.append(-at % SECTOR)
        if left[-1] < 4:
            at += left[-1]
    return set(left[:-1])


def files(algorithm):
    """What is written: by name, the seed and the length."""
    wanted = {f"{algorithm}-inline": (1, 1500), f"{algorithm}-part": (2, 10000)}
    if algorithm == "lzo":
        wanted |= {f"try{seed}": (seed, EXTENT) for seed in range(100, 1300)}
    else:
        wanted[f"{algorithm}-full"] = (3, EXTENT)
    return wanted


def stored(image, names):
    """By name: whether it is inline, its bytes, and ram_bytes. Profiles are single: one chunk is one stripe."""
    dump = run("btrfs", "inspect-internal", "dump-tree", image)
    chunks = [
        tuple(map(int, found))
        for found in re.findall(r"CHUNK_TREE CHUNK_ITEM (\d+)\).*\n\t\tlength (\d+) (?:.*\n){3,5}?.*stripe 0 devid 1 offset (\d+)", dump)
    ]
    physical = lambda at: next(p + at - start for start, length, p in chunks if start <= at < start + length)
    result, leaf, inode, inodes = {}, None, None, {}
    with open(image, "rb") as disk:
        def read(at, length):
            disk.seek(physical(at))
            return disk.read(length)

        lines = iter(dump.splitlines())
        for line in lines:
            if found := re.match(r"leaf (\d+) items", line):
                leaf = int(found[1])
            elif found := re.match(r"\titem \d+ key \((\d+) INODE_REF", line):
                inodes[int(found[1])] = re.search(r"name: (.*)", next(lines))[1]
            elif found := re.match(r"\titem \d+ key \((\d+) EXTENT_DATA 0\) itemoff (\d+) itemsize (\d+)", line):
                inode, offset, size = map(int, found.groups())
                name, inline = inodes[inode], "inline" in next(lines)
                if inline:
                    ram_bytes = int(re.search(r"ram_bytes (\d+)", next(lines))[1])
                    result[name] = (True, read(leaf + 101 + offset + 21, size - 21), ram_bytes)
                else:
                    at, length = map(int, re.search(r"disk byte (\d+) nr (\d+)", next(lines)).groups())
                    line = next(lines)
                    assert "compression 0" not in next(lines), name
                    result[name] = (False, read(at, length), int(re.search(r"ram (\d+)", line)[1]))
    assert result.keys() == names.keys()
    return result


def make(algorithm):
    names = files(algorithm)
    with tempfile.TemporaryDirectory() as work:
        image, mount = f"{work}/image", f"{work}/mount"
        os.mkdir(mount)
        run("truncate", "-s", "1G", image)
        run("mkfs.btrfs", "-q", "-d", "single", "-m", "single", image)
        run("mount", "-o", f"loop,compress-force={algorithm},max_inline=2048", image, mount)
        try:
            for name, (seed, length) in names.items():
                with open(f"{mount}/{name}", "wb") as file:
                    file.write(content(seed, length))
        finally:
            run("umount", mount)
        extents = stored(image, names)
    lefts = {}
    for name, (inline, data, ram_bytes) in extents.items():
        seed, length = names[name]
        disk_num_bytes = 0 if inline else len(data)
        if not inline:
            data = data.rstrip(b"\0")
        if name.startswith("try"):
            found = ends(data) & set(range(5)) - lefts.keys()
            if not found:
                continue
            lefts.update(dict.fromkeys(found, name))
            name = f"lzo-left{min(found)}"
        with open(f"{HERE}/{name}.bin", "wb") as file:
            file.write(data)
        yield f"{name} {algorithm} {seed} {length} {ram_bytes} {disk_num_bytes}\n"
    assert algorithm != "lzo" or len(lefts) == 5, lefts


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    lines = [line for algorithm in ("zlib", "lzo", "zstd") for line in make(algorithm)]
    with open(f"{HERE}/vectors.txt", "w") as file:
        file.writelines(lines)
