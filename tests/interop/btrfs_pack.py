#!/usr/bin/python3
"""btrfs_pack.py - keep images of mostly empty devices as small files, and make them again.

    btrfs_pack.py pack DIRECTORY IMAGE...     write DIRECTORY/image.map and DIRECTORY/image.bin
    btrfs_pack.py unpack DIRECTORY OUTPUT     make the sparse images OUTPUT/0.img, OUTPUT/1.img, ...
    btrfs_pack.py selftest

image.map is text, one thing a line, all numbers decimal:

    device INDEX BYTES                        an image of so many bytes, all zero but for what follows
    copy INDEX OFFSET BYTES SOURCE            BYTES bytes at OFFSET of image INDEX are those at SOURCE of image.bin

Every number but the indices is a multiple of 64. Runs of an image do not overlap. The same bytes are kept once, so that
copies cost nothing: several runs may have the same source.
"""

import os
import sys
import tempfile

UNIT = 64  # the grain of what is kept
PIECE = 4096  # the grain of what is looked up as perhaps kept already


def extents(file, size):
    """Yields (offset, length) of what may be other than zero, in pieces aligned to PIECE."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(file, offset, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        end = os.lseek(file, start, os.SEEK_HOLE)
        start -= start % PIECE
        offset = min(size, -(-end // PIECE) * PIECE)
        yield start, offset - start


def runs(piece):
    """Yields (offset, bytes) of the parts of a piece that are not zero, in whole units."""
    start = None
    for offset in range(0, len(piece) + UNIT, UNIT):
        used = any(piece[offset : offset + UNIT])
        if used and start is None:
            start = offset
        elif not used and start is not None:
            yield start, piece[start:offset]
            start = None


def pack(directory, images):
    known = {}  # run -> its place in the binary
    kept = bytearray()
    lines = []
    for index, path in enumerate(images):
        size = os.path.getsize(path)
        assert size % UNIT == 0, f"{path} is of no whole number of units"
        lines.append(f"device {index} {size}")
        copies = []  # [offset, length, source]
        with open(path, "rb") as file:
            for start, length in extents(file.fileno(), size):
                for offset in range(start, start + length, PIECE):
                    piece = os.pread(file.fileno(), min(PIECE, size - offset), offset)
                    for at, run in runs(piece):
                        source = known.get(run)
                        if source is None:
                            source = known[run] = len(kept)
                            kept += run
                        last = copies[-1] if copies else None
                        if last and last[0] + last[1] == offset + at and last[2] + last[1] == source:
                            last[1] += len(run)
                        else:
                            copies.append([offset + at, len(run), source])
        lines += [f"copy {index} {offset} {length} {source}" for offset, length, source in copies]
    with open(os.path.join(directory, "image.map"), "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(os.path.join(directory, "image.bin"), "wb") as file:
        file.write(kept)


def unpack(directory, output):
    """Returns the paths of the images that were made."""
    with open(os.path.join(directory, "image.bin"), "rb") as file:
        kept = file.read()
    paths = []
    with open(os.path.join(directory, "image.map")) as lines:
        for line in lines:
            word, *rest = line.split()
            numbers = list(map(int, rest))
            if word == "device":
                assert numbers[0] == len(paths)
                paths.append(os.path.join(output, f"{numbers[0]}.img"))
                with open(paths[-1], "wb") as image:
                    image.truncate(numbers[1])
            else:
                assert word == "copy", line
                index, offset, length, source = numbers
                with open(paths[index], "r+b") as image:
                    image.seek(offset)
                    image.write(kept[source : source + length])
    return paths


def selftest():
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(f"{directory}/out")
        sector = os.urandom(512)
        writes = [
            [(0, sector), (4096 + 3584, sector + sector), (1 << 38, os.urandom(9000))],
            [(65536, sector), (3 << 20, sector * 20)],
        ]
        names = []
        for index, parts in enumerate(writes):
            names.append(f"{directory}/in{index}")
            with open(names[-1], "wb") as file:
                for offset, data in parts:
                    file.seek(offset)
                    file.write(data)
                file.truncate(1 << 39 if index == 0 else 4 << 20)
        pack(directory, names)
        made = unpack(directory, f"{directory}/out")
        for index, parts in enumerate(writes):
            assert os.path.getsize(made[index]) == os.path.getsize(names[index])
            with open(made[index], "rb") as file:
                for offset, data in parts:
                    file.seek(offset)
                    assert file.read(len(data)) == data, (index, offset)
        again = f"{directory}/again"
        os.mkdir(again)
        pack(again, made)
        for name in ("image.map", "image.bin"):
            with open(f"{directory}/{name}", "rb") as first, open(f"{again}/{name}", "rb") as second:
                assert first.read() == second.read(), f"{name} differs after a round"
    print("what was packed is unpacked")


def main():
    match sys.argv[1:]:
        case ["pack", directory, *images] if images:
            pack(directory, images)
        case ["unpack", directory, output]:
            os.makedirs(output, exist_ok=True)
            print(*unpack(directory, output), sep="\n")
        case ["selftest"]:
            selftest()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
