#!/usr/bin/python3
"""md_member.py - what the scenarios of md-scenarios.sh do to a member while no array runs.

    md_member.py spoil IMAGE FIRST COUNT   other bytes in these sectors of its data; once more, and they are as before
    md_member.py data IMAGE...             SHA-256 of their data: of what the array uses of the members
    md_member.py unmarked IMAGE            a sector of its data in a chunk that its write-intent bitmap has not marked
    md_member.py beyond IMAGE...           those whose newest partial parity log Linux does not find: it ends with its area
                                           (docs/upstream.md, B5)
    md_member.py swap IMAGE                turn a 0.90 superblock into the one of a machine with the other byte order
    md_member.py sum TARGET                SHA-256 of a volume; TARGET as for stamp.py
    md_member.py selftest

Where the data are is read from the superblock (docs/formats/md.md), without asking either side.
"""

import hashlib
import os
import struct
import sys
import tempfile

from stamp import SECTOR, open_device

MAGIC = 0xA92B4EFC


def old_superblock(file):
    """Where the superblock of version 0.90 is: 64 KiB before the last full 64 KiB end."""
    return (file.seek(0, 2) & ~0xFFFF) - 0x10000


def area(file):
    """Returns (first sector, sectors) of the data."""
    for at in (4096, 0, (file.seek(0, 2) // SECTOR - 16 & ~7) * SECTOR):  # 1.2, 1.1, 1.0
        file.seek(at)
        block = file.read(256)
        if struct.unpack_from("<II", block) == (MAGIC, 1):
            return struct.unpack_from("<Q", block, 128)[0], struct.unpack_from("<Q", block, 80)[0]
    file.seek(old_superblock(file))
    block = file.read(64)
    assert struct.unpack_from("<I", block)[0] == MAGIC, "no superblock in this machine's byte order"
    return 0, 2 * struct.unpack_from("<I", block, 8 * 4)[0]


def spoil(image, first, count):
    with open(image, "r+b") as file:
        start, size = area(file)
        assert first + count <= size, "that is not data"
        file.seek((start + first) * SECTOR)
        old = file.read(count * SECTOR)
        file.seek((start + first) * SECTOR)
        # Each byte changes, in another way at each place; done twice, all is as it was.
        file.write(bytes(byte ^ (1 + (31 * first + 7 * at) % 255) for at, byte in enumerate(old)))


def data(*images):
    sums = []
    for image in images:
        with open(image, "rb") as file:
            start, size = area(file)
            file.seek(start * SECTOR)
            sums.append(hashlib.sha256(file.read(size * SECTOR)).hexdigest())
    return "\n".join(sums)


def swap(image):
    """Every word, and the high words of 64-bit numbers first; the checksum is a sum of words and stays right."""
    with open(image, "r+b") as file:
        at = old_superblock(file)
        file.seek(at)
        words = list(struct.unpack("<1024I", file.read(4096)))
        for low in (39, 41, 44):  # events, events of the last checkpoint, position of a reshape
            words[low], words[low + 1] = words[low + 1], words[low]
        file.seek(at)
        file.write(struct.pack(">1024I", *words))


def unmarked(image):
    """The last such chunk: writes at random places may well have marked the first ones."""
    with open(image, "rb") as file:
        _, size = area(file)
        file.seek(4096)
        block = file.read(256)
        assert struct.unpack_from("<II", block) == (MAGIC, 1), "not a superblock of version 1.2"
        bitmap = 4096 + SECTOR * struct.unpack_from("<i", block, 96)[0]
        file.seek(bitmap)
        head = file.read(256)
        chunk = struct.unpack_from("<I", head, 52)[0] // SECTOR
        bits = file.read((size // chunk + 7) // 8)
    clear = [bit for bit in range(size // chunk) if not bits[bit // 8] >> bit % 8 & 1]
    assert clear, "every chunk is marked"
    return clear[-1] * chunk


HEADER = 8  # sectors, of a partial parity log


def crc32c(data):
    """As the kernel's crc32c(~0, data), inverted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def newest_log(image):
    """Where its newest partial parity log ends in the area, and how long that is, in sectors; None without a log (docs/formats/md.md)."""
    with open(image, "rb") as file:
        for at in (4096, 0, (file.seek(0, 2) // SECTOR - 16 & ~7) * SECTOR):  # 1.2, 1.1, 1.0
            file.seek(at)
            block = file.read(256)
            if struct.unpack_from("<II", block) == (MAGIC, 1):
                break
        offset, length = struct.unpack_from("<hH", block, 96)
        file.seek(at + offset * SECTOR)
        logs = file.read(length * SECTOR)
    signature, end, last = crc32c(block[16:32]), None, 0
    while (start := (end or 0) * SECTOR) + HEADER * SECTOR <= len(logs):
        header = logs[start : start + HEADER * SECTOR]
        own, _, generation, entries, checksum = struct.unpack_from("<IIQII", header, 512)
        if own != signature or generation < last or entries > 148 or crc32c(header[:532] + bytes(4) + header[536:]) != checksum:
            break
        lengths = (struct.unpack_from("<I", header, 544 + 24 * entry)[0] for entry in range(entries))
        end, last = (end or 0) + HEADER + sum(lengths) // SECTOR, generation
    return None if end is None else (end, length)


def beyond(*images):
    found = ((image, newest_log(image)) for image in images)
    return "\n".join(image for image, log in found if log and log[0] + HEADER >= log[1])


PIECE = 1 << 20


def sum_of(target):
    device = open_device(target)
    digest = hashlib.sha256()
    for at in range(0, device.size, PIECE):
        digest.update(device.read(at, min(PIECE, device.size - at)))
    return digest.hexdigest()


def selftest():
    with tempfile.NamedTemporaryFile() as file:
        image = file.name
        file.truncate(1 << 20)
        file.seek(4096)
        block = bytearray(256)
        struct.pack_into("<II", block, 0, MAGIC, 1)
        struct.pack_into("<QQ", block, 80, 64, 0)
        struct.pack_into("<Q", block, 128, 128)
        file.write(block)
        file.flush()
        sound = data(image)
        assert sound == hashlib.sha256(bytes(64 * SECTOR)).hexdigest()
        spoil(image, 63, 1)
        assert data(image) != sound
        spoil(image, 63, 1)
        assert data(image) == sound
        # Three logs, of which the last one ends with the area, or 4 KiB before it, or earlier.
        for spare, is_beyond in ((0, True), (HEADER, True), (HEADER + 1, False)):
            lengths = (0, 5, 3)
            total = sum(lengths) + 3 * HEADER
            struct.pack_into("<hH", block, 96, 8, total + spare)
            file.seek(4096)
            file.write(block)
            file.seek(16 * SECTOR)
            for number, length in enumerate(lengths):
                header = bytearray(HEADER * SECTOR)
                struct.pack_into("<IIQI", header, 512, crc32c(block[16:32]), 0, number, 1)
                struct.pack_into("<QI", header, 536, 0, length * SECTOR)
                struct.pack_into("<I", header, 532, crc32c(header))
                file.write(header + bytes(length * SECTOR))
            file.flush()
            assert newest_log(image) == (total, total + spare)
            assert beyond(image) == (image if is_beyond else "")
        spoil(image, 63, 1)
        with open(image, "rb") as other:
            assert os.path.getsize(image) == len(other.read())
            other.seek((128 + 64) * SECTOR)
            assert not any(other.read()), "sectors behind the data were changed"
        try:
            spoil(image, 64, 1)
        except AssertionError:
            pass
        else:
            raise AssertionError("it spoils what is not data")


def main():
    verbs = {"spoil": (spoil, 3), "data": (data, None), "unmarked": (unmarked, 1), "swap": (swap, 1)}
    verbs |= {"beyond": (beyond, None), "sum": (sum_of, 1), "selftest": (selftest, 0)}
    verb, count = verbs.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    arguments = sys.argv[2:]
    if not verb or len(arguments) != (count if count is not None else max(1, len(arguments))):
        sys.exit(__doc__)
    if verb is spoil:
        arguments[1:] = map(int, arguments[1:])
    done = verb(*arguments)
    if done is not None:
        print(done)


if __name__ == "__main__":
    main()
