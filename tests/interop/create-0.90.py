#!/usr/bin/python3
"""create-0.90.py CHUNK_KIB MEMBER... - /dev/md0 as a RAID0 with superblocks of version 0.90, running.

mdadm cannot: since 4.2 it gives every RAID0 a layout, and then refuses with "0.90 metadata does not
support layouts for RAID0". The kernel still can: told the geometry by the ioctls that mdadm used
(include/uapi/linux/raid/md_u.h), it invents the UUID and writes the superblocks itself.
"""

import fcntl
import os
import stat
import struct
import sys

SET_ARRAY_INFO = 1 << 30 | 72 << 16 | 9 << 8 | 0x23
ADD_NEW_DISK = 1 << 30 | 20 << 16 | 9 << 8 | 0x21
RUN_ARRAY = 1 << 30 | 12 << 16 | 9 << 8 | 0x30
RESERVED = 64 * 1024  # the superblock and what is lost to its alignment
IN_SYNC = 1 << 1 | 1 << 2  # active, in sync


def usable(device):
    with open(device, "rb") as file:
        return file.seek(0, os.SEEK_END) // RESERVED * RESERVED - RESERVED


def main():
    chunk, members = int(sys.argv[1]), sys.argv[2:]
    if not os.path.exists("/dev/md0"):
        os.mknod("/dev/md0", stat.S_IFBLK | 0o600, os.makedev(9, 0))
    array = os.open("/dev/md0", os.O_RDWR)
    size = min(map(usable, members)) // 1024
    count = len(members)
    # major, minor, patch version, ctime, level, size, nr, raid disks, minor of md, persistent, utime, clean,
    # active, working, failed, spare disks, layout, chunk
    info = struct.pack("<18i", 0, 90, 0, 0, 0, size, count, count, 0, 0, 0, 1, count, count, 0, 0, 0, chunk * 1024)
    fcntl.ioctl(array, SET_ARRAY_INFO, info)
    for number, member in enumerate(members):
        device = os.stat(member).st_rdev
        disk = struct.pack("<5i", number, os.major(device), os.minor(device), number, IN_SYNC)
        fcntl.ioctl(array, ADD_NEW_DISK, disk)
    fcntl.ioctl(array, RUN_ARRAY, bytes(12))


if __name__ == "__main__":
    main()
