#!/usr/bin/python3
"""zvol_segments.py - requests of many small unaligned segments, as an installer's package manager makes them.

    zvol_segments.py write --seed NAME [--requests N] TARGET
    zvol_segments.py selftest

TARGET is as for stamp.py. A request is a run of adjacent segments of 512 bytes to 8 KiB that begins and ends at any
sector. To a block device it is one vectored write around the page cache, so one bio of as many segments; to a file one
vectored write; over NBD each segment is a write of its own, and all of them are in flight at once, for the server to
merge. The runs overlap those before. Now and then it flushes, and reads some of it back.

In the end everything is read and compared with what was written, and the SHA-256 of that is printed.
"""

import argparse
import hashlib
import mmap
import os
import random
import stat
import sys
import tempfile

from stamp import SECTOR, FileDevice, NbdDevice, seed_of

LARGEST = 8192
MOST = 256  # segments, as of a bio
STRIDE = LARGEST + 4096  # so that no two segments are neighbours in memory
READ = 1 << 20


class Vectored(FileDevice):
    """Each run is one pwritev, around the page cache if it is a block device."""

    def __init__(self, path):
        super().__init__(path)
        if stat.S_ISBLK(os.fstat(self.fd).st_mode):
            os.close(self.fd)
            self.fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.memory = memoryview(mmap.mmap(-1, MOST * STRIDE))

    def read(self, offset, length):
        """Into memory of its own pages, as O_DIRECT wants it."""
        buffer = mmap.mmap(-1, length)
        if os.preadv(self.fd, [buffer], offset) != length:
            raise OSError("short read")
        return bytes(buffer)

    def write_run(self, offset, segments):
        vector = []
        for number, segment in enumerate(segments):
            slot = self.memory[number * STRIDE:][:len(segment)]
            slot[:] = segment
            vector.append(slot)
        if os.pwritev(self.fd, vector, offset) != sum(map(len, segments)):
            raise OSError("short write")


class Pipelined(NbdDevice):
    """Each run is in flight at once."""

    DEPTH = MOST

    def write_run(self, offset, segments):
        for segment in segments:
            self.write(offset, segment)
            offset += len(segment)


def runs(dice, sectors, requests):
    """Yields (first sector, list of segments) with contents that never repeat."""
    hot = dice.randrange(sectors // 2)
    for _ in range(requests):
        first = hot + dice.randrange(sectors // 8) if dice.random() < 0.5 else dice.randrange(sectors)
        at, segments = first, []
        most = dice.choice([1, 4, 32, 128, MOST])
        small = dice.random() < 0.5
        while len(segments) < most:
            count = dice.choice([1, 1, 1, 2, 3] if small else [1, 2, 7, 8, 9, LARGEST // SECTOR])
            if at + count > sectors:
                break
            segments.append(dice.randbytes(count * SECTOR))
            at += count
        if segments:
            yield first, segments


def write(device, seed, requests):
    """Returns the SHA-256 of what is there now; raises AssertionError if something else is."""
    dice = random.Random(seed)
    model = bytearray()
    while len(model) < device.size:
        model += device.read(len(model), min(READ, device.size - len(model)))
    total = 0

    def compare(first, length):
        read = device.read(first, length)
        wrong = [at for at in range(0, length, SECTOR) if read[at:at + SECTOR] != model[first + at:first + at + SECTOR]]
        assert not wrong, f"{len(wrong)} sectors of {length // SECTOR} at {first} differ, first at {first + wrong[0]}"

    for first, segments in runs(dice, device.size // SECTOR, requests):
        device.write_run(first * SECTOR, segments)
        data = b"".join(segments)
        model[first * SECTOR:first * SECTOR + len(data)] = data
        total += len(segments)
        if dice.random() < 0.1:
            device.flush()
        if dice.random() < 0.1:
            device.settle()
            compare(first * SECTOR, len(data))
    device.flush()
    for first in range(0, device.size, READ):
        compare(first, min(READ, device.size - first))
    print(f"{requests} requests, {total} segments", file=sys.stderr)
    return hashlib.sha256(model).hexdigest()


def selftest():
    """A segment that is lost, moved or stale is found."""

    class Faulty(Vectored):
        countdown = -1
        fault = None

        def write_run(self, offset, segments):
            self.countdown -= 1
            if self.countdown == 0:
                victim = len(segments) // 2
                at = offset + sum(map(len, segments[:victim]))
                stale = self.read(at, len(segments[victim]))
                segments = list(segments)
                segments[victim] = {"lost": bytes(len(stale)), "stale": stale, "moved": segments[victim][::-1]}[self.fault]
            super().write_run(offset, segments)

    with tempfile.NamedTemporaryFile() as file:
        file.truncate(2 << 20)
        device = Faulty(file.name)
        expected = write(device, 1, 40)
        with open(file.name, "rb") as written:
            assert hashlib.sha256(written.read()).hexdigest() == expected
        for device.fault in ("lost", "stale", "moved"):
            device.countdown = 40  # the last, which nothing overwrites
            try:
                write(device, 2, 40)
            except AssertionError as error:
                assert "sectors of" in str(error)
            else:
                raise AssertionError(f"a segment that is {device.fault} is not found")
    print("segments that are wrong are found")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("verb", choices=["write", "selftest"])
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seed")
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_intermixed_args()
    if options.verb == "selftest":
        selftest()
        return
    if not (options.target and options.seed):
        parser.error("TARGET and --seed are needed")
    if options.target.startswith("nbd:"):
        device = Pipelined(options.target[len("nbd:"):])
    else:
        device = Vectored(options.target)
    print(write(device, seed_of(options.seed), options.requests))


if __name__ == "__main__":
    main()
