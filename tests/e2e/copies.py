#!/usr/bin/env python3
"""copies.py IMAGE... - are all copies of every chunk of an md raid1 or raid10 array the same?

Reads the 1.x superblocks of the members itself and computes from md(4)'s definition of the layouts where
the copies are: nothing here comes from the program under test. Also says whether the array is clean.
Exit 1 with the first differing places otherwise.
"""
import struct
import sys


def member(path):
    f = open(path, 'rb')
    f.seek(0, 2)
    sectors = f.tell() // 512
    for at in (8, 0, (sectors - 16) & ~7):
        f.seek(at * 512)
        sb = f.read(4096)
        if sb[:4] == b'\xfc\x4e\x2b\xa9' and struct.unpack_from('<Q', sb, 144)[0] == at:
            break
    else:
        sys.exit(f'{path}: no md superblock')
    level, layout = struct.unpack_from('<iI', sb, 72)
    size, chunk, disks = struct.unpack_from('<QII', sb, 80)
    data_offset, = struct.unpack_from('<Q', sb, 128)
    number, = struct.unpack_from('<I', sb, 160)
    resync, = struct.unpack_from('<Q', sb, 208)
    role, = struct.unpack_from('<H', sb, 256 + 2 * number)
    if resync != (1 << 64) - 1:
        sys.exit(f'{path}: the array is not clean')
    return {'file': f, 'role': role, 'level': level, 'layout': layout, 'size': size, 'chunk': chunk,
            'disks': disks, 'offset': data_offset}


def main():
    members = sorted((member(p) for p in sys.argv[1:]), key=lambda m: m['role'])
    a = members[0]
    disks, size, layout = a['disks'], a['size'], a['layout']
    if [m['role'] for m in members] != list(range(disks)):
        sys.exit(f'roles {[m["role"] for m in members]} of an array of {disks}')
    chunk = a['chunk'] or 128

    def read(disk, at):
        m = members[disk]
        m['file'].seek((m['offset'] + at) * 512)
        return m['file'].read(chunk * 512)

    near, far, offset = layout & 255, layout >> 8 & 255, layout >> 16 & 1
    if a['level'] == 1:
        near, far, offset = disks, 1, 0
    rows = size // chunk                       # of a member
    section = rows // far                      # rows of one set of copies
    chunks = section * disks // near
    zero, compared, bad = bytes(chunk * 512), 0, []
    for c in range(chunks):
        places = []
        for n in range(near):
            row, disk = divmod(c * near + n, disks)
            for f in range(far):
                at = row * far + f if offset else f * section + row
                places.append(((disk + f * near) % disks, at * chunk))
        first = read(*places[0])
        compared += first != zero
        for place in places[1:]:
            if read(*place) != first:
                bad.append((c, places[0], place))
    print(f'{chunks} chunks, {compared} with data, {len(bad)} with copies that differ')
    for c, one, other in bad[:5]:
        print(f'  chunk {c}: member {one[0]} sector {one[1]} and member {other[0]} sector {other[1]}')
    sys.exit(bool(bad) or not compared)


main()
