#!/usr/bin/python3
"""stamp.py - write stamps to a block device, and compare what is read with what was written.

    stamp.py write  --seed NAME --phase N [--discards] [--few] [--sectors N] TARGET
    stamp.py verify --seed NAME --phase N [--discards] [--few] [--sectors N] TARGET
    stamp.py selftest

TARGET is a block device, a file, or NBD: nbd:SOCKET or nbd:SOCKET:EXPORT (without EXPORT:
the only one the server lists). With --sectors only so many from its beginning are used.

Each sector of 512 bytes carries a stamp of its own: seed, generation and its address, 32
times over. So a sector that is at the wrong place, stale, torn or of another array says so
itself, and the comparer knows nothing of layouts.

What is written follows from seed, size and phase alone: phase 1 fills the device with gaps
and overwrites at random, later phases overwrite more. Whoever verifies replays the same
operations on a model, so that kernel and ashlar share nothing but the image. With --discards,
phase 1 discards and zeroes, too (the later phases only write). With --few the later phases write
to a few small places only.

In the model a sector has a generation (0: never written or zeroed, reads as zeros) and can be
"loose": discarded after its last write. Loose sectors may read as zeros or as they were, as
discard is only a hint; anything else is an error.
"""

import argparse
import fcntl
import os
import random
import struct
import sys
import tempfile
import zlib

SECTOR = 512
MAGIC = 0xA54C
WINDOW = 2048  # sectors compared at a time
RANDOM_OPERATIONS = 150
FEW_OPERATIONS = 10
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127F  # linux/fs.h


def stamp(seed, generation, sector):
    if generation == 0:
        return bytes(SECTOR)
    return struct.pack("<IHHQ", seed, generation, MAGIC, sector) * (SECTOR // 16)


def payload(seed, generation, first, count):
    return b"".join(stamp(seed, generation, sector) for sector in range(first, first + count))


def operations(seed, sectors, phase, discards, few=False):
    """Yields (kind, first sector, count, generation) of one phase."""
    dice = random.Random(seed * 1000 + phase)
    if phase == 1:
        extents, at = [], 0
        while at < sectors:
            count = min(dice.choice([8, 64, 256, 1024]) + dice.choice([0, 0, 0, 1, 7]), sectors - at)
            if dice.random() > 1 / 16:
                extents.append((at, count))
            at += count
        dice.shuffle(extents)
        for first, count in extents:
            yield "write", first, count, 1
    kinds = ["write"] * 4 + (["discard", "discard", "zero"] if discards and phase == 1 else [])
    few = few and phase > 1
    for number in range(FEW_OPERATIONS if few else RANDOM_OPERATIONS):
        kind = dice.choice(kinds)
        largest = min(sectors, (64 if few else 1024) if kind == "write" else sectors // 3)
        count = 1 + int(largest ** dice.random()) % largest
        first = dice.randrange(sectors - count + 1)
        if dice.random() < 0.5:  # half of them at 4 KiB boundaries
            first -= first % 8
        yield kind, first, count, phase * 1000 + number


class Model:
    """What each sector must read as."""

    def __init__(self, seed, sectors):
        self.seed = seed
        self.generation = [0] * sectors
        self.loose = bytearray(sectors)

    def apply(self, kind, first, count, generation):
        end = first + count
        if kind == "discard":
            self.loose[first:end] = b"\1" * count
        else:
            self.generation[first:end] = [generation if kind == "write" else 0] * count
            self.loose[first:end] = bytes(count)

    def replay(self, phase, discards, few=False):
        for done in range(1, phase + 1):
            for operation in operations(self.seed, len(self.loose), done, discards, few):
                self.apply(*operation)

    def mismatches(self, device):
        """Yields (sector, what was read) for each sector that is wrong."""
        for first in range(0, len(self.loose), WINDOW):
            count = min(WINDOW, len(self.loose) - first)
            got = device.read(first * SECTOR, count * SECTOR)
            want = [stamp(self.seed, g, first + i) for i, g in enumerate(self.generation[first:first + count])]
            if got == b"".join(want):
                continue
            for i in range(count):
                read = got[i * SECTOR:(i + 1) * SECTOR]
                if read != want[i] and not (self.loose[first + i] and read == bytes(SECTOR)):
                    yield first + i, read

    def explain(self, sector, read):
        found = f"{read[:16].hex()}..."
        seed, generation, magic, address = struct.unpack_from("<IHHQ", read)
        if read == bytes(SECTOR):
            found = "zeros"
        elif read != read[:16] * (SECTOR // 16):
            found = f"torn: {found}"
        elif magic == MAGIC:
            whose = "" if seed == self.seed else " of another array"
            found = f"generation {generation} of sector {address}{whose}"
        loose = " or zeros" if self.loose[sector] else ""
        return f"sector {sector}: want generation {self.generation[sector]}{loose}, found {found}"


class FileDevice:
    def __init__(self, path):
        try:
            self.fd = os.open(path, os.O_RDWR)
        except OSError:  # a mode, a mount, or a block device that is read-only
            self.fd = os.open(path, os.O_RDONLY)
        self.size = os.lseek(self.fd, 0, os.SEEK_END)

    def read(self, offset, length):
        parts = []
        while length:
            part = os.pread(self.fd, length, offset)
            if not part:
                raise OSError("unexpected end of the device")
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def write(self, offset, data):
        if os.pwrite(self.fd, data, offset) != len(data):
            raise OSError("short write")

    def discard(self, offset, length):
        """Of block devices only. The kernel would drop what it has not written yet, rather than discard it."""
        self.flush()
        fcntl.ioctl(self.fd, BLKDISCARD, struct.pack("QQ", offset, length))

    def zero(self, offset, length):
        self.flush()
        fcntl.ioctl(self.fd, BLKZEROOUT, struct.pack("QQ", offset, length))

    def settle(self):
        pass

    def flush(self):
        os.fsync(self.fd)

    def gone(self):
        return False


class NbdDevice:
    """Writes are kept in flight as long as they do not touch one another."""

    DEPTH = 16

    def __init__(self, target):
        import nbd  # Debian's python3-libnbd

        self.nbd = nbd
        socket, _, export = target.partition(":")
        self.handle = nbd.NBD()
        self.handle.set_opt_mode(True)
        self.handle.connect_unix(socket)
        if not export:
            names = []
            self.handle.opt_list(lambda name, _: names.append(name))
            if len(names) != 1:
                raise OSError(f"the server lists {names}, name one")
            export = names[0]
        self.handle.set_export_name(export)
        self.handle.opt_go()
        self.size = self.handle.get_size()
        self.flying = []  # (cookie, offset, end, memory)
        self.free = {}  # the memory of writes that have landed, by its length
        self.buffers = {}  # libnbd's, by the id of their memory

    def read(self, offset, length):
        self.settle()
        return self.handle.pread(length, offset)

    def write(self, offset, data):
        end = offset + len(data)
        while len(self.flying) >= self.DEPTH or any(o < end and offset < e for _, o, e, _ in self.flying):
            self.land()
        # libnbd never lets go of the buffer of a write, so that each is used again, for writes of its length.
        free = self.free.setdefault(len(data), [])
        memory = free.pop() if free else bytearray(len(data))
        memory[:] = data
        buffer = self.buffers.setdefault(id(memory), self.nbd.Buffer.from_buffer(memory))
        self.flying.append((self.handle.aio_pwrite(buffer, offset), offset, end, memory))

    def land(self):
        self.handle.poll(-1)
        flying = []
        for flight in self.flying:
            if self.handle.aio_command_completed(flight[0]):
                self.free[len(flight[3])].append(flight[3])
            else:
                flying.append(flight)
        self.flying = flying

    def settle(self):
        while self.flying:
            self.land()

    def discard(self, offset, length):
        if self.handle.can_trim():  # arrays with parity do not discard
            self.settle()
            self.handle.trim(length, offset)

    def zero(self, offset, length):
        self.settle()
        self.handle.zero(length, offset)

    def flush(self):
        self.settle()
        self.handle.flush()

    def gone(self):
        """After an error: did the connection break, or was an answer an error?"""
        return self.handle.aio_is_dead() or self.handle.aio_is_closed()


def open_device(target):
    return NbdDevice(target[len("nbd:"):]) if target.startswith("nbd:") else FileDevice(target)


def write(device, seed, phase, discards, few=False):
    number = 0
    for kind, first, count, generation in operations(seed, device.size // SECTOR, phase, discards, few):
        if kind == "write":
            device.write(first * SECTOR, payload(seed, generation, first, count))
        elif kind == "discard":
            device.discard(first * SECTOR, count * SECTOR)
        else:
            device.zero(first * SECTOR, count * SECTOR)
        number += 1
        if number % 64 == 0:
            device.flush()
    device.flush()
    print(f"phase {phase}: {number} operations on {device.size} bytes")


def verify(device, seed, phase, discards, few=False):
    model = Model(seed, device.size // SECTOR)
    model.replay(phase, discards, few)
    wrong = 0
    for sector, read in model.mismatches(device):
        wrong += 1
        if wrong <= 5:
            print(model.explain(sector, read))
    loose = sum(model.loose)
    print(f"phase {phase}: {device.size // SECTOR} sectors compared, {loose} of them discarded, {wrong} wrong")
    return wrong == 0


def selftest():
    """The comparer accepts what was written and finds every kind of damage."""

    class Memory(FileDevice):
        def discard(self, offset, length):  # every other one is honoured
            if offset // SECTOR % 2:
                self.write(offset, bytes(length))

        def zero(self, offset, length):
            self.write(offset, bytes(length))

    def damage(device, model, what):
        solid = [s for s, g in enumerate(model.generation) if g and not model.loose[s]]
        a, b = solid[len(solid) // 3], solid[len(solid) // 2]
        old = device.read(a * SECTOR, SECTOR)
        new = {
            "bit": old[:100] + bytes([old[100] ^ 1]) + old[101:],
            "zeros": bytes(SECTOR),
            "moved": device.read(b * SECTOR, SECTOR),
            "stale": stamp(model.seed, model.generation[a] - 1 or 999, a),
            "foreign": stamp(model.seed + 1, model.generation[a], a),
            "torn": old[:256] + bytes(256),
        }[what]
        device.write(a * SECTOR, new)
        found = list(model.mismatches(device))
        assert [sector for sector, _ in found] == [a], (what, found)
        print(f"{what}: {model.explain(*found[0])}")
        device.write(a * SECTOR, old)

    with tempfile.NamedTemporaryFile() as file:
        file.truncate(3 * 1024 * 1024 + 41 * 1024)
        device = Memory(file.name)
        seed = seed_of("selftest")
        write(device, seed, 1, True)
        assert verify(device, seed, 1, True)
        assert not verify(device, seed, 2, True), "a phase that was not written must be missed"
        write(device, seed, 2, True)
        assert verify(device, seed, 2, True)
        model = Model(seed, device.size // SECTOR)
        model.replay(2, True)
        for what in ("bit", "zeros", "moved", "stale", "foreign", "torn"):
            damage(device, model, what)
        hole = next(s for s, g in enumerate(model.generation) if g == 0 and not model.loose[s])
        device.write(hole * SECTOR, stamp(seed, 1, hole))
        assert [sector for sector, _ in model.mismatches(device)] == [hole]
    print("the comparer finds what it should")


def seed_of(name):
    return zlib.crc32(name.encode())


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("verb", choices=["write", "verify", "selftest"])
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seed")
    parser.add_argument("--phase", type=int)
    parser.add_argument("--discards", action="store_true")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--sectors", type=int)
    options = parser.parse_intermixed_args()
    if options.verb == "selftest":
        selftest()
        return
    if not (options.target and options.seed and options.phase):
        parser.error("TARGET, --seed and --phase are needed")
    device = open_device(options.target)
    device.size = options.sectors * SECTOR if options.sectors else device.size
    arguments = (device, seed_of(options.seed), options.phase, options.discards, options.few)
    if options.verb == "write":
        write(*arguments)
    elif not verify(*arguments):
        sys.exit(1)


if __name__ == "__main__":
    main()
