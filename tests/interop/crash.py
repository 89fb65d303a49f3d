#!/usr/bin/python3
"""crash.py - write to an array until somebody pulls the plug, and verify that what was flushed is there.

    crash.py write  --seed NAME --state FILE --log FILE [--discards] [--seconds S] TARGET
    crash.py verify --seed NAME --state FILE --log FILE [--discards] [--torn | --degraded SECTORS] TARGET
    crash.py selftest

TARGET is as for stamp.py. `write` issues batches of writes (and discards and zeroes with --discards),
flushes after each and only then notes in the log, durably, the generation that was flushed last; the
next batch begins after that. It ends when the target goes away, with success; or, and then it notes
that too, after S seconds.

Each sector carries seed, generation and its own address, 32 times over. What is written follows from
seed and state alone, so `verify` can replay it: all batches up to the flushed one must be there, one
more may be there, sector by sector. Then it keeps in the state what it found, which is where the next
round begins, and empties the log. With --torn one sector may begin as one write that was not flushed left it
and end as an earlier one did: OpenZFS's log cuts a write that does not fit a log block anywhere, so that after
a crash only the first piece may be replayed of the last one, on top of all before it. With --degraded a member of the
array is missing, and with it what was being written there: what was not flushed may be anything, in units of SECTORS. A client of NBD
writes sectors; the page cache writes pages, of 8. Nothing is kept then.
"""

import argparse
import array
import itertools
import os
import random
import struct
import sys
import tempfile
import time

from stamp import SECTOR, FileDevice, open_device, seed_of

ZERO = bytes(SECTOR)
WINDOW = 2048  # sectors compared at a time
HOT = 512  # sectors of each of the places that are written most


def stamp(seed, generation, sector):
    return struct.pack("<IIQ", seed, generation, sector) * (SECTOR // 16) if generation else ZERO


def generation_of(seed, sector, data):
    """The generation of a sector that was read, 0 for zeros, None if it is nothing we ever write there."""
    if data == ZERO:
        return 0
    generation = struct.unpack_from("<II", data)[1]
    return generation if data == stamp(seed, generation, sector) else None


def batches(seed, sectors, first, discards):
    """Yields for ever lists of (kind, first sector, count, generation), generations from `first` up."""
    dice = random.Random(f"{seed} {first}")
    hot = [dice.randrange(sectors - HOT) for _ in range(6)]
    kinds = ["write"] * 12 + (["zero", "discard"] if discards else [])
    number = itertools.count(first)
    while True:
        batch = []
        for _ in range(dice.choice([1, 2, 8, 40, 120])):
            kind = dice.choice(kinds)
            low, room = (dice.choice(hot), HOT) if dice.random() < 0.6 else (0, sectors)
            count = dice.choice([1, 8, 8, 8, 16, 64, 256])
            at = low + dice.randrange(room - count + 1)
            if dice.random() < 0.5:  # half of them at 4 KiB boundaries
                at -= at % 8
            batch.append((kind, at, count, next(number)))
        yield batch


class State:
    """What is on the array for certain: the generation of each sector, and the next one to be written."""

    def __init__(self, path, sectors):
        self.path = path
        self.next = 1
        self.generation = array.array("I", bytes(4 * sectors))
        if os.path.exists(path):
            with open(path, "rb") as file:
                (self.next,) = struct.unpack("<I", file.read(4))
                self.generation = array.array("I", file.read())
            assert len(self.generation) == sectors, "the state is that of another array"

    def save(self):
        with open(f"{self.path}.new", "wb") as file:
            file.write(struct.pack("<I", self.next) + self.generation.tobytes())
            os.fsync(file.fileno())
        os.rename(f"{self.path}.new", self.path)


def issue(device, seed, kind, first, count, generation):
    if kind == "write":
        data = b"".join(stamp(seed, generation, sector) for sector in range(first, first + count))
        device.write(first * SECTOR, data)
    elif kind == "zero":
        device.zero(first * SECTOR, count * SECTOR)
    else:
        device.discard(first * SECTOR, count * SECTOR)


def write(device, seed, state, log, discards, seconds):
    """Returns how many operations were flushed, and whether the target went away."""
    flushed = state.next - 1
    end = time.monotonic() + seconds
    with open(log, "w", encoding="ascii") as file:

        def note(text):
            print(text, file=file, flush=True)
            os.fsync(file.fileno())

        try:
            for batch in batches(seed, len(state.generation), state.next, discards):
                for operation in batch:
                    issue(device, seed, *operation)
                device.flush()
                flushed = batch[-1][3]
                note(flushed)
                if time.monotonic() > end:
                    note("end")
                    return flushed - state.next + 1, False
        except Exception:
            if not device.gone():
                raise
    return flushed - state.next + 1, True


def expected(seed, state, log, discards):
    """What `write` has left: (generations, loose sectors, operations that may have been done, the last
    generation). A loose sector was discarded after its last write, so that zeros are as good."""
    with open(log, encoding="ascii") as file:
        # A line that was cut off is one that was not written.
        lines = [line.strip() for line in file if line.endswith("\n")]
    ended = lines[-1:] == ["end"]
    flushed = int(lines[-1 - ended]) if lines else 0
    generation, loose = state.generation[:], bytearray(len(state.generation))
    for batch in batches(seed, len(generation), state.next, discards):
        if batch[-1][3] > flushed:
            return generation, loose, [] if ended else batch, max(flushed, batch[-1][3])
        for kind, first, count, number in batch:
            end = first + count
            loose[first:end] = (b"\1" if kind == "discard" else b"\0") * count
            if kind != "discard":
                generation[first:end] = array.array("I", [number if kind == "write" else 0]) * count
    raise AssertionError("batches end never")


def pieces_of(seed, sector, data):
    """What a sector consists of, in words: from which byte on it is zeros, a generation, or neither."""

    def piece(at):
        part = data[at : at + 16]
        if part == bytes(16):
            return "zeros"
        generation = struct.unpack_from("<II", part)[1]
        return f"generation {generation}" if part == stamp(seed, generation, sector)[:16] else "neither"

    found = [(at, piece(at)) for at in range(0, SECTOR, 16)]
    changes = [found[0]] + [now for before, now in zip(found, found[1:]) if now[1] != before[1]]
    return ", ".join(f"{what} from byte {at}" for at, what in changes)


def replayed_in_part(perhaps, sector):
    """The generations that a piece of an unflushed write to a sector may have. The log takes the data of a write when it
    is committed: that of a later write to the sector, or zeros if it was discarded or zeroed after a write."""
    generations = []
    for kind, at, length, number in perhaps:
        if at <= sector < at + length and (kind == "write" or generations):
            generations.append(number if kind == "write" else 0)
    return generations


def is_torn(seed, sector, read, flushed, newer):
    """Whether it begins as one of the generations `newer`, and goes on as an earlier one, or as the one that was flushed."""
    stamps = [stamp(seed, generation, sector) for generation in (flushed, *newer)]
    return any(
        read[:cut] == new[:cut] and read[cut:] == old[cut:]
        for old, new in itertools.combinations(stamps, 2)
        for cut in range(8, SECTOR, 8)
    )


def verify(device, seed, state, log, discards, torn=False, degraded=0):
    """Prints what is wrong; returns how many sectors are. A member is missing if `degraded`, which is the unit of writes then."""
    want, loose, perhaps, last = expected(seed, state, log, discards)
    wrong = newer = 0
    is_cut = False  # whether the end of the log tore a sector: there is one end
    for first in range(0, len(want), WINDOW):
        count = min(WINDOW, len(want) - first)
        data = device.read(first * SECTOR, count * SECTOR)
        if data == b"".join(stamp(seed, want[s], s) for s in range(first, first + count)):
            continue
        for sector in range(first, first + count):
            read = data[(sector - first) * SECTOR:][:SECTOR]
            found = generation_of(seed, sector, read)
            if found == want[sector] or (found == 0 and loose[sector]):
                pass
            elif found is not None and any(
                found == (number if kind == "write" else 0) and at <= sector < at + length
                for kind, at, length, number in perhaps
            ):
                newer += 1
            elif degraded and any(
                at // degraded <= sector // degraded <= (at + length - 1) // degraded for _, at, length, _ in perhaps
            ):
                newer += 1
            elif torn and not is_cut and is_torn(seed, sector, read, want[sector], replayed_in_part(perhaps, sector)):
                # The next round must know what it is.
                device.write(sector * SECTOR, stamp(seed, want[sector], sector))
                print(f"sector {sector} is torn: it was not flushed ({pieces_of(seed, sector, read)})")
                is_cut = True
                newer += 1
                continue
            else:
                wrong += 1
                if wrong <= 5:
                    print(f"sector {sector}: flushed was generation {want[sector]}, found {pieces_of(seed, sector, read)}")
                    unflushed = [one for one in perhaps if one[1] <= sector < one[1] + one[2]]
                    print(f"  not flushed, kind, first sector, count, generation: {unflushed}")
            want[sector] = found or 0
    flushed = (perhaps[0][3] if perhaps else last + 1) - state.next
    print(f"{flushed} operations flushed, {len(want)} sectors compared, {newer} newer, {wrong} wrong")
    if not wrong and not degraded:
        state.generation, state.next = want, last + 1
        state.save()
        os.truncate(log, 0)
    return wrong


def selftest():
    """What was flushed and what was not is told apart, and damage is found."""

    class Cut(FileDevice):
        """Goes away after some operations; those after the last flush are lost, or some of them."""

        left = 0
        unflushed = []

        def write(self, offset, data):
            if self.left == 0:
                raise OSError("gone")
            self.left -= 1
            self.unflushed.append((offset, self.read(offset, len(data))))
            super().write(offset, data)

        def zero(self, offset, length):
            self.write(offset, bytes(length))

        def discard(self, offset, length):
            self.write(offset, bytes(length) if offset % 3 else self.read(offset, length))

        def flush(self):
            self.unflushed = []

        def gone(self):
            return self.left == 0

        def lose(self, dice):
            keep = dice.randrange(len(self.unflushed) + 1)
            for offset, data in reversed(self.unflushed[keep:]):
                super().write(offset, data)
            self.unflushed = []

    dice = random.Random(1)
    seed = seed_of("selftest")
    with tempfile.TemporaryDirectory() as directory:
        image, path, log = (f"{directory}/{name}" for name in ("image", "state", "log"))
        with open(image, "wb") as file:
            file.truncate(2 << 20)
        device = Cut(image)
        sectors = device.size // SECTOR
        for number in range(8):
            state = State(path, sectors)
            device.left = dice.randrange(1, 1500)
            _, gone = write(device, seed, state, log, True, 3600 if number else 0)
            if number == 0:
                assert not gone, "the time was up"
            else:
                assert gone
                device.lose(dice)
            # One flushed sector with the generation before it, with that of a neighbour, torn, or empty.
            want, loose, perhaps, last = expected(seed, state, log, True)
            touched = {s for _, first, count, _ in perhaps for s in range(first, first + count)}
            solid = [s for s in range(sectors) if want[s] and not loose[s] and s not in touched]
            victim = dice.choice(solid)
            good = device.read(victim * SECTOR, SECTOR)
            for bad in (
                stamp(seed, want[victim] - 1 or last + 1, victim),
                stamp(seed, want[victim], victim + 1),
                stamp(seed + 1, want[victim], victim),
                good[:256] + bytes(256),
                ZERO,
            ):
                device.left = 2
                device.write(victim * SECTOR, bad)
                assert verify(device, seed, State(path, sectors), log, True) == 1, "damage was not found"
                device.write(victim * SECTOR, good)
            if touched:
                # Torn between what was flushed and what was not.
                kind, victim, _, number = next(reversed([one for one in perhaps if one[0] == "write"]), (None,) * 4)
                if kind and not loose[victim]:
                    before = device.read(victim * SECTOR, SECTOR)
                    halves = stamp(seed, number, victim)[:144] + stamp(seed, want[victim], victim)[144:]
                    device.left = 4
                    device.write(victim * SECTOR, halves)
                    assert verify(device, seed, State(path, sectors), log, True) == 1, "it is torn"
                    assert verify(device, seed, State(path, sectors), log, True, degraded=1) == 0, "a member is missing"
                    assert is_torn(seed, victim, halves, want[victim], [number])
                    device.write(victim * SECTOR, before)
            # Beside what was not flushed, in its page.
            beside = [s for s in solid if s % 8 == 7 and s - 1 in touched]
            if beside:
                good = device.read(beside[0] * SECTOR, SECTOR)
                device.left = 2
                device.write(beside[0] * SECTOR, ZERO)
                assert verify(device, seed, State(path, sectors), log, True, degraded=8) == 0, "it was in a page that was written"
                assert verify(device, seed, State(path, sectors), log, True, degraded=1) == 1, "nobody wrote it"
                device.write(beside[0] * SECTOR, good)
            assert verify(device, seed, State(path, sectors), log, True) == 0
            assert verify(device, seed, State(path, sectors), log, True) == 0, "nothing changed since"
    # Found by zvol.sh: a write and then a discard, of which neither was flushed. The log had the zeros as the write's data,
    # and the kernel replayed its first piece.
    neither = [("write", 3024, 256, 1447), ("discard", 3068, 256, 1459)]
    torn = ZERO[:64] + stamp(seed, 1328, 3083)[64:]
    assert generation_of(seed, 3083, torn) is None
    assert is_torn(seed, 3083, torn, 1328, replayed_in_part(neither, 3083)), "it is a piece of the write"
    assert not is_torn(seed, 3083, torn, 1328, replayed_in_part(neither[::-1], 3083)), "the write came after the discard"
    assert not is_torn(seed, 3083, torn, 1328, replayed_in_part(neither[1:], 3083)), "there was no write"
    # Found by zvol.sh, too: the piece of the last write lies on another that was not flushed.
    three = [("write", 848, 256, 2497), ("write", 891, 256, 2517), ("write", 904, 256, 2559)]
    newest, newer = (stamp(seed, generation, 1075) for generation in (2559, 2517))
    assert is_torn(seed, 1075, newest[:160] + newer[160:], 2464, replayed_in_part(three, 1075)), "a piece on another write"
    assert not is_torn(seed, 1075, newer[:160] + newest[160:], 2464, replayed_in_part(three, 1075)), "the older on the newer"
    print("what is flushed and what is not is told apart")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("verb", choices=["write", "verify", "selftest"])
    parser.add_argument("target", nargs="?")
    for option in ("--seed", "--state", "--log"):
        parser.add_argument(option)
    parser.add_argument("--discards", action="store_true")
    parser.add_argument("--torn", action="store_true")
    parser.add_argument("--degraded", type=int, default=0, metavar="SECTORS")
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_intermixed_args()
    if options.verb == "selftest":
        selftest()
        return
    if not (options.target and options.seed and options.state and options.log):
        parser.error("TARGET, --seed, --state and --log are needed")
    device = open_device(options.target)
    seed, state = seed_of(options.seed), State(options.state, device.size // SECTOR)
    if options.verb == "verify":
        wrong = verify(device, seed, state, options.log, options.discards, options.torn, options.degraded)
        if not options.degraded:
            device.flush()
        sys.exit(wrong != 0)
    flushed, gone = write(device, seed, state, options.log, options.discards, options.seconds)
    print(f"{flushed} operations flushed, " + ("then the target went away" if gone else "all of them"))


if __name__ == "__main__":
    main()
