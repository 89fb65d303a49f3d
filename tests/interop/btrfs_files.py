#!/usr/bin/python3
"""btrfs_files.py - files of every kind for a btrfs, and lists of what is there.

    btrfs_files.py fill DIRECTORY SEED [small]   make them in the root of a mounted btrfs
    btrfs_files.py manifest DIRECTORY            list all that is below it, subvolumes too
    btrfs_files.py selftest

Contents are functions of SEED and the name. Each 4 KiB of a plain file begins with a line that names file and place
and has nothing but zeroes after it, so that every sector differs from every other and little is kept in an image.

A manifest has a line for each thing, sorted by its path:

    TYPE MODE SIZE CONTENT PATH

TYPE is that of find: f, d, l, p, c, b, s. MODE is octal, without the type. SIZE is of f and l only, else 0. CONTENT is
the SHA-256 of a file's bytes or of a link's target, MAJOR:MINOR of a device, else `-`; or `unreadable`, and TYPE is ? of what cannot be looked at. PATH begins with /; bytes other
than printable ASCII, and the backslash, are written \\xNN.
"""

import fcntl
import hashlib
import os
import random
import stat
import struct
import subprocess
import sys
import tempfile

SECTOR = 4096
COLLIDING = ("twin-ca4dc843-6", "twin-f571a831-44")  # names of the same hash: both are in one DIR_ITEM
FICLONERANGE = 0x4020940D
FS_IOC_SETFLAGS = 0x40086602
FS_NOCOW = 0x00800000


def crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def name_hash(name):
    """The hash under which a directory has a name: crc32c that begins with ~1 and is not inverted in the end."""
    crc = 0xFFFFFFFE
    for byte in name:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc


def marked(seed, name, size, first=0):
    """`size` bytes: a line at the start of each sector, the first of which is number `first`."""
    out = bytearray(size)
    for at in range(0, size, SECTOR):
        line = f"{seed} {name} sector {first + at // SECTOR}\n".encode()
        line = line[: size - at]
        out[at : at + len(line)] = line
    return bytes(out)


def dense(seed, name, size):
    """Bytes that no compressor makes smaller."""
    return random.Random(f"{seed} {name}").randbytes(size)


def wordy(seed, name, size):
    """Bytes that every compressor makes smaller, to a tenth at best."""
    draw = random.Random(f"{seed} {name}")
    words = [draw.randbytes(6).hex() for _ in range(50)]
    return " ".join(draw.choice(words) for _ in range(size // 12)).encode()[:size].ljust(size, b".")


def write(path, data, offset=0):
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        assert os.pwrite(handle, data, offset) == len(data)
    finally:
        os.close(handle)


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def btrfs(*arguments):
    subprocess.run(["btrfs", *arguments], check=True, stdout=subprocess.DEVNULL)


def clone(source, offset, length, target, at):
    with open(source, "rb") as origin, open(target, "r+b") as file:
        fcntl.ioctl(file, FICLONERANGE, struct.pack("=qQQQ", origin.fileno(), offset, length, at))


def no_cow(path):
    """Makes an empty file whose data is neither copied on write nor has checksums."""
    with open(path, "wb") as file:
        fcntl.ioctl(file, FS_IOC_SETFLAGS, struct.pack("=l", FS_NOCOW))


def fill(root, seed, small):
    def at(name):
        return os.path.join(root, name)

    write(at("empty"), b"")
    write(at("inline"), marked(seed, "inline", 1000))
    write(at("one"), marked(seed, "one", SECTOR))
    write(at("odd"), marked(seed, "odd", 10001))
    write(at("large"), marked(seed, "large", (200 if small else 320) << 10))
    write(at("holes"), marked(seed, "holes", 6000))
    write(at("holes"), marked(seed, "holes", 6000, 256), 1 << 20)
    os.truncate(at("holes"), (2 << 20) + 5)
    handle = os.open(at("preallocated"), os.O_CREAT | os.O_WRONLY, 0o600)
    os.posix_fallocate(handle, 0, 256 << 10)
    os.pwrite(handle, marked(seed, "preallocated", 8192, 16), 65536)
    os.close(handle)
    no_cow(at("unsummed"))
    write(at("unsummed"), marked(seed, "unsummed", 32768))
    for kind in ("zlib", "lzo", "zstd"):
        os.mkdir(at(kind))
        btrfs("property", "set", at(kind), "compression", kind)
        write(at(f"{kind}/inline"), b"again and " * 150)
        write(at(f"{kind}/words"), wordy(seed, kind, 12000 if small else 40000))
        write(at(f"{kind}/marks"), marked(seed, kind, 300 << 10))  # three extents of 128 KiB
    os.symlink("a target that is not there", at("link"))
    os.link(at("odd"), at("odd-again"))

    btrfs("subvolume", "create", at("volume"))
    write(at("volume/kept"), marked(seed, "kept", 24576))
    write(at("volume/changed"), marked(seed, "changed", 98304))
    btrfs("filesystem", "sync", root)
    btrfs("subvolume", "snapshot", "-r", at("volume"), at("snapshot"))
    write(at("volume/changed"), marked(seed, "changed-later", 8192), 32768)
    write(at("volume/new"), marked(seed, "new", 5000))
    write(at("reflinked"), marked(seed, "reflinked", 40960))
    clone(at("volume/kept"), 0, 24576, at("reflinked"), 8192)
    btrfs("filesystem", "sync", root)
    if small:
        return

    write(at("dense"), dense(seed, "dense", 9000))
    write(at("zlib/dense"), dense(seed, "zlib", 5000))
    # A file of many extents, each from a transaction of its own, and a hole behind every second.
    for number in range(24):
        write(at("fragments"), marked(seed, "fragments", SECTOR, number), number * SECTOR * (1 + number % 2))
        if number % 4 == 3:
            sync(at("fragments"))
    os.mkfifo(at("pipe"), 0o640)
    os.mknod(at("character"), stat.S_IFCHR | 0o600, os.makedev(7, 260))
    os.mknod(at("block"), stat.S_IFBLK | 0o660, os.makedev(300, 70000))
    os.setxattr(at("odd"), "user.note", b"an attribute")
    os.setxattr(at("odd"), "user.long", marked(seed, "attribute", 700))
    os.chmod(at("one"), 0o4751)
    os.chown(at("one"), 1234, 70001)
    os.makedirs(at("deep/er/and/deeper/still"))
    write(at("deep/er/and/deeper/still/leaf"), marked(seed, "leaf", 4097))
    write(os.path.join(os.fsencode(root), b"deep/na\xc3\xafve \xff name\\"), b"bytes\n")
    write(at("deep/" + "l" * 255), b"a long name\n")
    for name in COLLIDING:
        write(at(f"deep/{name}"), marked(seed, name, 3000))
    os.mkdir(at("many"))
    for number in range(36):
        write(at(f"many/file-{number:02}-of-many"), marked(seed, f"many{number}", 100 + number % 7 * 900))
    for number in range(0, 36, 16):
        os.unlink(at(f"many/file-{number:02}-of-many"))
    btrfs("subvolume", "create", at("volume/nested"))
    write(at("volume/nested/inner"), marked(seed, "inner", 12288))
    btrfs("subvolume", "snapshot", at("volume"), at("deep/second"))
    write(at("deep/second/changed"), marked(seed, "changed-there", 4096), 65536)
    for number in range(12):  # one extent, many references
        write(at(f"deep/copy-{number:02}"), b"")
        clone(at("large"), 65536, 65536, at(f"deep/copy-{number:02}"), 0)
    btrfs("filesystem", "sync", root)


def written(path):
    out = ""
    for byte in path:
        out += chr(byte) if 32 < byte < 127 and byte != 92 else f"\\x{byte:02x}"
    return out


def manifest(root):
    """Returns the lines, without newlines."""
    root = os.fsencode(root)
    found = []
    for directory, folders, files in os.walk(root):
        found += [os.path.join(directory, name) for name in folders + files]
    lines = []
    for path in sorted(found):
        name = written(path[len(root.rstrip(b"/")) :])
        try:
            state = os.lstat(path)
        except OSError:
            lines.append(f"? 0000 0 unreadable {name}")
            continue
        mode, size, content = state.st_mode, 0, "-"
        if stat.S_ISREG(mode):
            size = state.st_size
            try:
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                content = "unreadable"
        elif stat.S_ISLNK(mode):
            target = os.readlink(path)
            size, content = len(target), hashlib.sha256(target).hexdigest()
        elif stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
            content = f"{os.major(state.st_rdev)}:{os.minor(state.st_rdev)}"
        letter = stat.filemode(mode)[0].replace("-", "f")
        lines.append(f"{letter} {stat.S_IMODE(mode):04o} {size} {content} {name}")
    return lines


def selftest():
    assert COLLIDING[0] != COLLIDING[1]
    assert name_hash(COLLIDING[0].encode()) == name_hash(COLLIDING[1].encode())
    assert marked("s", "n", 5000)[4096:].startswith(b"s n sector 1\n") and len(marked("s", "n", 4099)) == 4099
    with tempfile.TemporaryDirectory() as root:
        write(f"{root}/b c\\", b"x")
        os.symlink("b", f"{root}/a")
        x, b = (hashlib.sha256(text).hexdigest() for text in (b"x", b"b"))
        assert manifest(root) == [f"l 0777 1 {b} /a", f"f 0644 1 {x} /b\\x20c\\x5c"], manifest(root)
    print("files are listed as they are")


def main():
    match sys.argv[1:]:
        case ["fill", directory, seed]:
            fill(directory, seed, False)
        case ["fill", directory, seed, "small"]:
            fill(directory, seed, True)
        case ["manifest", directory]:
            print(*manifest(directory), sep="\n")
        case ["selftest"]:
            selftest()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
