#!/usr/bin/python3
"""poison.py - see what a recovery copies to a member, sector by sector.

    poison.py spread IMAGE FIRST COUNT       overwrite these sectors, and keep what was there
    poison.py lift IMAGE RANGES [MAYBE]      recovered were the sectors in RANGES, no less and no more
                                             (but perhaps those in MAYBE)
    poison.py chunks --seed NAME --phase N --sectors N --chunk SECTORS --start SECTOR
                     --layout LAYOUT --members N --stripe SECTORS --slot N
    poison.py selftest

`spread` makes a member useless where a recovery is not to copy anything, and where it is. What is
still poisoned afterwards was not copied: `lift` compares that with what had to be, and puts the kept
bytes back there, so that the array is whole if and only if the recovery was right to leave them alone.

RANGES is FIRST+COUNT,... in sectors of the image.

`chunks` prints, for a phase of stamp.py --few on an array of so many sectors, how many chunks of a
write-intent bitmap it touches, how many of them have copies on the member in a slot, and on a line of
its own the sectors there (as RANGES; the member's data begins at START). LAYOUT is that of a RAID10 (n2, f2,
o2), STRIPE its chunk; where it is `-` all members are alike, as in a RAID1.
"""

import argparse
import os
import sys
import tempfile

from stamp import SECTOR, operations, seed_of

POISON = b"ashlar: spoilt. " * (SECTOR // 16)


def spread(image, first, count):
    with open(image, "r+b") as file, open(f"{image}.kept", "wb") as kept:
        file.seek(first * SECTOR)
        data = file.read(count * SECTOR)
        assert len(data) == count * SECTOR, "the image ends before that"
        kept.write(first.to_bytes(8, "little") + data)
        file.seek(first * SECTOR)
        file.write(POISON * count)
        file.flush()
        os.fsync(file.fileno())


def lift(image, want, maybe=frozenset()):
    """Returns what is wrong as text, empty if nothing."""
    with open(f"{image}.kept", "rb") as kept:
        first = int.from_bytes(kept.read(8), "little")
        old = kept.read()
    sectors = range(first, first + len(old) // SECTOR)
    assert want <= set(sectors), "more was wanted than was poisoned"
    with open(image, "r+b") as file:
        copied = set()
        for sector in sectors:
            file.seek(sector * SECTOR)
            if file.read(SECTOR) != POISON:
                copied.add(sector)
                continue
            file.seek(sector * SECTOR)
            file.write(old[(sector - first) * SECTOR:][:SECTOR])
        file.flush()
        os.fsync(file.fileno())
    os.unlink(f"{image}.kept")
    print(f"{len(copied)} of {len(sectors)} sectors copied")
    problems = []
    for what, wrong in ("needlessly copied", copied - want - maybe), ("not copied", want - copied):
        if wrong:
            problems.append(f"{what}: {len(wrong)} sectors, {text(wrong)[:200]}")
    return "; ".join(problems)


def text(sectors):
    """A set of sectors as ranges."""
    ranges = []
    for sector in sorted(sectors):
        if ranges and sum(ranges[-1]) == sector:
            ranges[-1][1] += 1
        else:
            ranges.append([sector, 1])
    return ",".join(f"{first}+{count}" for first, count in ranges)


def parse(ranges):
    sectors = set()
    for part in filter(None, ranges.split(",")):
        first, count = map(int, part.split("+"))
        sectors |= set(range(first, first + count))
    return sectors


def copies(sector, layout, members, stripe, total):
    """Yields (member, sector of its data) for each copy of a sector of a RAID10 of `total` sectors."""
    kind, number = layout[0], int(layout[1:])
    chunk, rest = divmod(sector, stripe)
    for copy in range(number):
        if kind == "n":
            row, member = divmod(chunk * number + copy, members)
        else:
            row, member = chunk // members, (chunk + copy) % members
            row = row * number + copy if kind == "o" else row + copy * (total // stripe // members)
        yield member, row * stripe + rest


def chunks(options):
    touched = set()
    for _, first, count, _ in operations(seed_of(options.seed), options.sectors, options.phase, False, True):
        touched |= set(range(first // options.chunk, (first + count - 1) // options.chunk + 1))
    sectors = [
        sector
        for chunk in touched
        for sector in range(chunk * options.chunk, min((chunk + 1) * options.chunk, options.sectors))
    ]
    if options.layout == "-":
        return len(touched), len(touched), {options.start + sector for sector in sectors}
    here = [
        (sector, at)
        for sector in sectors
        for member, at in copies(sector, options.layout, options.members, options.stripe, options.sectors)
        if member == options.slot
    ]
    return len(touched), len({sector // options.chunk for sector, _ in here}), {options.start + at for _, at in here}


def selftest():
    with tempfile.NamedTemporaryFile() as file:
        old = os.urandom(64 * SECTOR)
        file.write(old)
        file.flush()
        for recovered, wanted, maybe, wrong in (
            ("20+4,30+1", "20+4,30+1", "", ""),
            ("20+5", "20+4", "", "needlessly copied: 1 sectors, 24+1"),
            ("20+5", "20+4", "24+1", ""),
            ("20+4", "20+4,30+2", "", "not copied: 2 sectors, 30+2"),
        ):
            spread(file.name, 10, 40)
            with open(file.name, "r+b") as image:
                for sector in parse(recovered):
                    image.seek(sector * SECTOR)
                    image.write(old[sector * SECTOR:][:SECTOR])
            assert lift(file.name, parse(wanted), parse(maybe)) == wrong
            with open(file.name, "rb") as image:
                assert image.read() == old, "all is as it was"
    assert text(parse("3+2,5+1,9+1")) == "3+3,9+1"
    # n2 on 3 members: A A B / B C C. f2: A B C and, half a member further, C A B. o2: A B C / C A B.
    for layout, where in (
        ("n2", [{(0, 0), (1, 0)}, {(2, 0), (0, 1)}, {(1, 1), (2, 1)}]),
        ("f2", [{(0, 0), (1, 4)}, {(1, 0), (2, 4)}, {(2, 0), (0, 4)}]),
        ("o2", [{(0, 0), (1, 1)}, {(1, 0), (2, 1)}, {(2, 0), (0, 1)}]),
    ):
        for chunk, places in enumerate(where):
            found = set(copies(chunk * 8 + 5, layout, 3, 8, 12 * 8))
            assert found == {(member, row * 8 + 5) for member, row in places}, (layout, chunk, found)
    print("what was copied is told apart")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("spread")
    verb.add_argument("image")
    verb.add_argument("first", type=int)
    verb.add_argument("count", type=int)
    verb = verbs.add_parser("lift")
    verb.add_argument("image")
    verb.add_argument("ranges")
    verb.add_argument("maybe", nargs="?", default="")
    verb = verbs.add_parser("chunks")
    for option in ("--seed", "--layout"):
        verb.add_argument(option, required=True)
    for option in ("--phase", "--sectors", "--chunk", "--start", "--members", "--stripe", "--slot"):
        verb.add_argument(option, type=int, required=True)
    verbs.add_parser("selftest")
    options = parser.parse_args()
    if options.verb == "spread":
        spread(options.image, options.first, options.count)
    elif options.verb == "lift":
        wrong = lift(options.image, parse(options.ranges), parse(options.maybe))
        sys.exit(f"{os.path.basename(options.image)}: {wrong}" if wrong else 0)
    elif options.verb == "chunks":
        everywhere, here, sectors = chunks(options)
        print(f"{everywhere} {here}\n{text(sectors)}")
    else:
        selftest()


if __name__ == "__main__":
    main()
