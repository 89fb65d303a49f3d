"""Makes superblocks by hand in which every field has another value, straight from the tables of
include/uapi/linux/raid/md_p.h and drivers/md/md-bitmap.h. fields.txt lists what is where."""

import struct

FIELDS = open("fields.txt", "w")


class Block:
    def __init__(self, name, size):
        self.name, self.data = name, bytearray(size)
        print(f"block {name}", file=FIELDS)

    def put(self, offset, length, field, value):
        data = value if isinstance(value, bytes) else (value % (1 << 8 * length)).to_bytes(length, "little")
        self.data[offset:offset + length] = data.ljust(length, b"\0")
        shown = data.hex() if isinstance(value, bytes) else value % (1 << 8 * length)
        print(f"{offset} {length} {field} {shown}", file=FIELDS)

    def seal(self, offset, used):
        words = used // 4
        total = sum(struct.unpack_from(f"<{words}I", self.data))
        if used % 4:
            total += struct.unpack_from("<H", self.data, words * 4)[0]
        self.put(offset, 4, "sb_csum", (total & 0xFFFFFFFF) + (total >> 32))

    def save(self):
        with open(f"{self.name}.bin", "wb") as file:
            file.write(self.data)


def version_1():
    b = Block("superblock_1", 4096)
    b.put(0, 4, "magic", 0xA92B4EFC)
    b.put(4, 4, "major_version", 1)
    b.put(8, 4, "feature_map", 1 | 2 | 4 | 8 | 64)
    b.put(12, 4, "pad0", 0)
    b.put(16, 16, "set_uuid", bytes(range(0x10, 0x20)))
    b.put(32, 32, "set_name", b"host.example:every-field")
    b.put(64, 8, "ctime", 0x123456 << 40 | 1234567890)
    b.put(72, 4, "level", 10)
    b.put(76, 4, "layout", 0x10203)
    b.put(80, 8, "size", 0x12340)
    b.put(88, 4, "chunksize", 0x40)
    b.put(92, 4, "raid_disks", 7)
    b.put(96, 4, "bitmap_offset", 0x18)
    b.put(100, 4, "new_level", -5)
    b.put(104, 8, "reshape_position", 0x1122334455667788)
    b.put(112, 4, "delta_disks", -2)
    b.put(116, 4, "new_layout", 0x302)
    b.put(120, 4, "new_chunk", 0x80)
    b.put(124, 4, "new_offset", -0x99)
    b.put(128, 8, "data_offset", 0x1000)
    b.put(136, 8, "data_size", 0x23456)
    b.put(144, 8, "super_offset", 8)
    b.put(152, 8, "recovery_offset", 0x3456)
    b.put(160, 4, "dev_number", 5)
    b.put(164, 4, "cnt_corrected_read", 77)
    b.put(168, 16, "device_uuid", bytes(range(0xD0, 0xE0)))
    b.put(184, 1, "devflags", 0xF2)
    b.put(185, 1, "bblog_shift", 3)
    b.put(186, 2, "bblog_size", 6)
    b.put(188, 4, "bblog_offset", 0x30)
    b.put(192, 8, "utime", 0x654321 << 40 | 1345678901)
    b.put(200, 8, "events", 0x0102030405060708)
    b.put(208, 8, "resync_offset", 0x4567)
    b.put(220, 4, "max_dev", 11)
    b.put(224, 4, "logical_block_size", 2048)
    b.put(228, 28, "pad3", bytes(28))
    # An odd number of roles: the checksum ends with half a word.
    roles = [3, 0xFFFE, 0, 0xFFFF, 8, 6, 0xFFFD, 1, 2, 4, 5]
    for number, role in enumerate(roles):
        b.put(256 + 2 * number, 2, f"role_{number}", role)
    b.seal(216, 256 + 2 * len(roles))
    # Something else behind the superblock, which must be neither summed nor lost.
    b.data[512:520] = b"leave me"
    b.save()


def version_0_90():
    b = Block("superblock_0_90", 4096)
    names = (
        "md_magic major_version minor_version patch_version gvalid_words set_uuid0 ctime level size "
        "nr_disks raid_disks md_minor not_persistent set_uuid1 set_uuid2 set_uuid3").split()
    values = [
        0xA92B4EFC, 0, 91, 3, 44, 0x10111213, 1234567890, 10, 50000, 9, 6, 127, 0,
        0x20212223, 0x30313233, 0x40414243]
    for index, (name, value) in enumerate(zip(names, values)):
        b.put(4 * index, 4, name, value)
    names = (
        "utime state active_disks working_disks failed_disks spare_disks sb_csum events_lo events_hi "
        "cp_events_lo cp_events_hi recovery_cp reshape_position_lo reshape_position_hi new_level "
        "delta_disks new_layout new_chunk logical_block_size").split()
    values = [
        1345678901, 256 | 2, 51, 52, 53, 54, None, 0x55, 0x56, 0x55, 0x56, 0x57, 0x58, 0x59, 5, -1,
        0x5A, 0x5B000, 1024]
    for index, (name, value) in enumerate(zip(names, values)):
        if value is not None:
            b.put(128 + 4 * index, 4, name, value)
    for index, (name, value) in enumerate(
            zip(("layout", "chunk_size", "root_pv", "root_block"), (0x10302, 32768, 0x61, 0x62))):
        b.put(256 + 4 * index, 4, name, value)

    def descriptor(offset, label, number, disk, state):
        values = (number, 200 + disk, 300 + disk, disk % 6, state)
        for index, (name, value) in enumerate(zip(("number", "major", "minor", "raid_disk", "state"), values)):
            b.put(offset + 4 * index, 4, f"{label}_{name}", value)

    states = [6, 6, 1, 6 | 1 << 9, 1 << 10, 2, 9, 8, 6 | 1 << 10]
    for disk in range(27):
        descriptor(512 + 128 * disk, f"disk{disk}", disk, disk, states[disk % len(states)])
    descriptor(3968, "this_disk", 4, 40, 512 | 6)
    b.seal(152, 4096)
    b.save()


def bitmap():
    b = Block("bitmap", 256)
    b.put(0, 4, "magic", 0x6D746962)
    b.put(4, 4, "version", 5)
    b.put(8, 16, "uuid", bytes(range(0x10, 0x20)))
    b.put(24, 8, "events", 0x0102030405060708)
    b.put(32, 8, "events_cleared", 0x0102030405060707)
    b.put(40, 8, "sync_size", 0x123456789)
    b.put(48, 4, "state", 2)
    b.put(52, 4, "chunksize", 0x80000)
    b.put(56, 4, "daemon_sleep", 7)
    b.put(60, 4, "write_behind", 250)
    b.put(64, 4, "sectors_reserved", 248)
    b.put(68, 4, "nodes", 4)
    b.put(72, 64, "cluster_name", b"a-cluster")
    b.put(136, 120, "pad", bytes(range(0x80, 0xF8)))
    b.save()


version_1()
version_0_90()
bitmap()
