#!/usr/bin/python3
"""record.py OUT - ask a running Linux kernel where RAID 0 and RAID 10 arrays put their sectors.

Needs root on a kernel whose md0 may be played with, and takes 7 minutes there:

    tests/oracle/uml-run --timeout 900 --rw DIR record.py DIR/table.txt

The arrays have no superblock and are made through sysfs, which takes layouts that mdadm does not
make. Every sector of an array is written with its own number, then the members are read, before
and after discards. main.rs explains what is written to OUT.
"""

import fcntl
import itertools
import os
import struct
import subprocess
import sys
import time

MD = "/sys/block/md0/md/"
BLKDISCARD = 0x1277
SECTOR = 512
PAGE = 8  # smallest chunk that the kernel takes, and granularity of discards on loop devices


def put(attribute, value):
    with open(MD + attribute, "w") as f:
        f.write(str(value))


def get(path):
    with open(path) as f:
        return f.read().strip()


class Members:
    """Loop devices over files in memory."""

    def __init__(self, directory, count):
        self.files, self.loops = [], []
        for i in range(count):
            path = f"{directory}/m{i}"
            with open(path, "wb") as f:
                f.truncate(1 << 20)
            loop = subprocess.check_output(["losetup", "--find", "--show", path], text=True)
            self.files.append(path)
            self.loops.append(loop.strip())

    def fill(self, byte):
        for path in self.files:
            with open(path, "r+b") as f:
                f.write(byte * (1 << 20))
        for loop in self.loops:
            subprocess.check_call(["blockdev", "--flushbufs", loop])

    def read(self, index, sectors):
        subprocess.check_call(["blockdev", "--flushbufs", self.loops[index]])
        with open(self.files[index], "rb") as f:
            return f.read(sectors * SECTOR)


def start(level, layout, chunk, sizes, members):
    """Returns why not, or None."""
    with open("/sys/module/md_mod/parameters/new_array", "w") as f:
        f.write("md0")
    try:
        put("metadata_version", "none")
        put("level", level)
        put("raid_disks", len(sizes))
        put("chunk_size", chunk * SECTOR)
        put("layout", layout)
        put("component_size", min(sizes) // 2)
        for slot, size in enumerate(sizes):
            loop = members.loops[slot]
            put("new_dev", get(f"/sys/block/{os.path.basename(loop)}/dev"))
            dev = f"dev-{os.path.basename(loop)}/"
            put(dev + "size", size // 2)
            put(dev + "slot", slot)
        put("resync_start", "none")
        put("array_state", "active")
    except OSError as e:
        return e.strerror
    return None


def stop():
    for _ in range(100):
        try:
            put("array_state", "clear")
            break
        except OSError:
            time.sleep(0.01)
    for _ in range(100):
        if not os.path.exists(MD):
            return
        time.sleep(0.01)


def open_md():
    for _ in range(100):
        if os.path.exists("/dev/md0"):
            return os.open("/dev/md0", os.O_RDWR)
        time.sleep(0.01)
    raise SystemExit("no /dev/md0")


def places(size, chunk, sizes, members):
    """Per member the number of the array chunk in each of its chunks."""
    fd = open_md()
    os.pwrite(fd, b"".join(struct.pack("<Q", s) * 64 for s in range(size)), 0)
    os.fsync(fd)
    os.close(fd)
    result = []
    for i, sectors in enumerate(sizes):
        data = members.read(i, sectors)
        held = []
        for at in range(0, sectors - chunk + 1, chunk):
            first = struct.unpack_from("<Q", data, at * SECTOR)[0]
            if first == 2**64 - 1:
                held.append("-")
                continue
            # The last chunk of the array may be cut off (RAID 0, chunk no power of two).
            for s in range(chunk):
                got = struct.unpack_from("<Q", data, (at + s) * SECTOR)[0]
                assert got == first + s or first + s >= size, (i, at, s, first, got)
            assert first % chunk == 0
            held.append(str(first // chunk))
        result.append(",".join(held))
    return " ".join(result)


def discard(first, length, sizes, members):
    """Per member the runs of sectors that a discard zeroes: START+LENGTH,..."""
    members.fill(b"\xff")
    fd = open_md()
    fcntl.ioctl(fd, BLKDISCARD, struct.pack("QQ", first * SECTOR, length * SECTOR))
    os.close(fd)
    result = []
    for i, sectors in enumerate(sizes):
        data = members.read(i, sectors)
        runs = []
        for zero, group in itertools.groupby(range(sectors), lambda s: data[s * SECTOR] == 0):
            group = list(group)
            if zero:
                runs.append(f"{group[0]}+{len(group)}")
        result.append(",".join(runs) or "-")
    return " ".join(result)


def case(out, level, layout, chunk, sizes, members):
    head = f"{level} {layout:#x} {chunk} {','.join(map(str, sizes))}"
    members.fill(b"\xff")
    why = start(level, layout, chunk, sizes, members)
    if why:
        print(f"{head} refused: {why}", file=out)
        stop()
        return
    size = int(get("/sys/block/md0/size"))
    print(f"{head} = {size}: {places(size, chunk, sizes, members)}", file=out)
    total = size // chunk
    for first, last in [(0, total), (1, total - 1), (total // 4, total - total // 3), (total // 2, total)]:
        if last > first:
            runs = discard(first * chunk, (last - first) * chunk, sizes, members)
            print(f"  discard {first * chunk}+{(last - first) * chunk}: {runs}", file=out)
    stop()


def cases():
    for disks in range(2, 7):
        for near in range(1, disks + 1):
            for far in range(1, disks // near + 1):
                if near * far == 1:
                    continue
                for offset in range(2) if far > 1 else [0]:
                    for mode in range(3) if far > 1 else [0]:
                        bits = near | far << 8 | offset << 16 | mode << 17
                        yield "raid10", bits, PAGE, [(5 * far + 1) * PAGE] * disks
    for bits in (0x002, 0x101, 0x200, 0x505, 0x8_0102, 0x6_0201):
        yield "raid10", bits, PAGE, [6 * PAGE] * 4
    for chunk in (8, 24, 40):
        for chunks in ([2, 2], [1, 3, 3], [3, 1, 3], [2, 4, 4, 6, 6], [5, 4, 3, 2, 1], [1, 1, 4, 4, 4], [2, 5, 7]):
            for layout in (0, 1, 2):
                yield "raid0", layout, chunk, [c * chunk + 2 * (c % 2) for c in chunks]


def main():
    subprocess.check_call(["modprobe", "-a", "loop", "raid0", "raid10"])
    directory = "/tmp/record"
    os.makedirs(directory)
    subprocess.check_call(["mount", "-t", "tmpfs", "tmpfs", directory])
    members = Members(directory, 6)
    with open(sys.argv[1], "w") as out:
        print(f"# Linux {os.uname().release}", file=out)
        for level, bits, chunk, sizes in cases():
            print(level, hex(bits), chunk, sizes, time.monotonic(), flush=True)
            case(out, level, bits, chunk, sizes, members)
            out.flush()


main()
