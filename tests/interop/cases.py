#!/usr/bin/python3
"""cases.py [--all] mdadm|ashlar - the arrays that one of them makes in the md suite, one a line:

    name  level  layout  chunk  metadata  bitmap  sizes

chunk is in KiB (0: the level has none), sizes is the size of each member image in KiB.

Every shape (level, layout and number of members) is there. The other parameters are
spread over the shapes so that within each level every pair of their values meets;
--all gives every combination instead. What ashlar cannot make is left out on its side:
RAID0 and levels with parity with superblocks of version 0.90; and bitmaps are on mdadm's side only.
"""

import itertools
import sys

METADATA = ["1.2", "1.0", "1.1", "0.90"]
CHUNKS = [4, 64, 512, 1024]
BITMAPS = ["none", "internal"]
MIB = 1024


LAYOUTS = ["left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric", "parity-first", "parity-last"]
LAYOUTS_6 = ["ddf-zero-restart", "ddf-N-restart", "ddf-N-continue"]
LAYOUTS_6 += [f"{layout}-6" for layout in LAYOUTS[:-1]]


def shapes(maker):
    """Yields (level, layout, members, unequal)."""
    for members in (2, 3, 4):
        yield "0", "-", members, False
    for layout in ("original", "alternate"):
        for members in (2, 3, 5):
            yield "0", layout, members, True
    for members in (2, 3):
        yield "1", "-", members, False
    for kind in "nfo":
        for copies in (2, 3):
            for members in range(copies, 7):
                yield "10", f"{kind}{copies}", members, False
    for members in (2, 3, 4):
        yield "linear", "-", members, True
    for members in (2, 3, 4):
        yield "4", "-", members, False
    for layout in LAYOUTS:
        for members in (2, 3, 4, 6) if layout == "left-symmetric" else (4,):
            yield "5", layout, members, False
    for layout in LAYOUTS + LAYOUTS_6:
        for members in (4, 5, 6) if layout == "left-symmetric" else (5,):
            yield "6", layout, members, False


def family(level):
    """Levels over which pairs of values are spread together."""
    return "parity" if level in ("4", "5", "6") else level


def options(level, unequal, maker):
    """Every combination of the parameters that a level has, as dictionaries. (A RAID0 of unequal
    members has a layout, for which 0.90 superblocks have no field.)"""
    old = level == "linear" or not unequal and (maker != "ashlar" or level in ("1", "10"))
    metadatas = METADATA if old else METADATA[:3]
    chunks = {"1": [0], "linear": [0, 64, 1024]}.get(level, CHUNKS)
    bitmaps = ["none"] if level in ("0", "linear") or maker == "ashlar" else BITMAPS
    for metadata, chunk, bitmap in itertools.product(metadatas, chunks, bitmaps):
        yield {"metadata": metadata, "chunk": chunk, "bitmap": bitmap}


def pairs(option):
    return set(itertools.combinations(sorted(option.items()), 2)) | {(item,) for item in option.items()}


def sizes(level, members, chunk, unequal, salt):
    """Member sizes in KiB: a few chunks and an odd rest, never a multiple of a chunk.
    The rests differ between the members (the smallest one counts), but not in a RAID0 that
    is to have one zone."""
    base = max(3 * MIB, 10 * chunk)
    rest = [41, 83, 7, 119, 59, 97] if unequal or level != "0" else [41]
    steps = [0, 3, 1, 5, 2] if unequal else [0] * members
    step = max(chunk, 640)
    return [base + steps[i] * step + rest[(i + salt) % len(rest)] for i in range(members)]


def spread(possible, options_left, number, count, rare):
    """Picks `count` options for a shape: those that show most pairs of values not met yet, and
    of equals the one with the metadata `rare`, which not every shape can have."""
    turn = number % len(possible)
    chosen = []
    for _ in range(min(count, len(possible))):
        fresh = [o for o in possible[turn:] + possible[:turn] if o not in chosen]
        chosen.append(max(fresh, key=lambda o: (len(pairs(o) & options_left), o["metadata"] == rare)))
        options_left -= pairs(chosen[-1])
    return chosen


def cases(everything, maker):
    counts = {"linear": 4, "0": 2, "1": 4, "10": 1, "parity": 1}  # options for each shape; RAID10 and parity have many
    kinds = {level: "5" if level == "parity" else level for level in counts}
    unmet = {level: set().union(*map(pairs, options(kinds[level], False, maker))) for level in counts}
    for number, (level, layout, members, unequal) in enumerate(shapes(maker)):
        possible = list(options(level, unequal, maker))
        count = counts[family(level)] + (level == "0" and not unequal)  # one more, for 0.90
        chosen = possible if everything else spread(possible, unmet[family(level)], number, count, None if family(level) == "parity" else "0.90")
        for option in chosen:
            chunk, bitmap = option["chunk"], option["bitmap"]
            shape = (level if level == "linear" else f"raid{level}") + ("" if layout == "-" else f"-{layout}") + f"-x{members}"
            name = f"{shape}-{chunk}k-{option['metadata']}" + ("-bitmap" if bitmap == "internal" else "")
            yield name, level, layout, chunk, option["metadata"], bitmap, sizes(level, members, chunk, unequal, number)
    assert everything or not any(unmet.values()), f"pairs of values that never meet: {unmet}"


def main():
    arguments = sys.argv[1:]
    maker = arguments[-1] if arguments else ""
    if maker not in ("mdadm", "ashlar") or arguments[:-1] not in ([], ["--all"]):
        sys.exit(__doc__)
    for *fields, member_sizes in cases(len(arguments) == 2, maker):
        print(*fields, ",".join(map(str, member_sizes)), sep="\t")


if __name__ == "__main__":
    main()
