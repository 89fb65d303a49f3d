#!/usr/bin/python3
"""btrfs_group_tree.py IMAGE... - give a new file system a block-group tree, which mkfs.btrfs 6.2 cannot.

The items of the block groups move from the extent tree to a tree of their own, as mkfs.btrfs does since 6.19 if not told
otherwise. Only for what mkfs.btrfs has just made (each tree is one leaf), not for RAID5 and RAID6. The first mount by a
kernel tells whether it is right.
"""

import struct
import sys

from btrfs_tree import EXTENT_TREE, METADATA, METADATA_ITEM, ROOT_ITEM, ROOT_TREE, SUMS, FileSystem

GROUP_TREE, FREE_SPACE_TREE = 11, 10
GROUP_ITEM, TREE_BLOCK_REF, FREE_SPACE_EXTENT = 192, 176, 199
TREE_BLOCK = 2
COMPAT_RO_GROUP_TREE = 8


def leaf(system, header, logical, owner, items):
    """Writes a leaf of `items`, sorted, with the rest of its header as in another tree block, to all its copies."""
    node = bytearray(system.node_bytes)
    node[:101] = header[:101]
    struct.pack_into("<Q", node, 48, logical)
    struct.pack_into("<QIB", node, 88, owner, len(items), 0)
    end = system.node_bytes
    for index, (key, data) in enumerate(sorted(items)):
        end -= len(data)
        node[end : end + len(data)] = data
        struct.pack_into("<QBQII", node, 101 + 25 * index, *key, end - 101, len(data))
    assert end >= 101 + 25 * len(items), "more than a leaf holds"
    node[:32] = SUMS[system.sum_kind](node[32:]).ljust(32, b"\0")
    for copy in system.place(logical).copies:
        write(system, copy.device, copy.physical, node)


def write(system, device, physical, data):
    with open(system.paths[device], "r+b") as image:
        image.seek(physical)
        image.write(data)


def convert(paths):
    system = FileSystem(paths)
    headers = {tree: system.read(logical, 101) for tree, logical in system.roots.items()}
    assert all(headers[tree][100] == 0 for tree in (ROOT_TREE, EXTENT_TREE, FREE_SPACE_TREE)), "it was written to"
    extents, roots, spaces = (list(system.items(system.roots[tree])) for tree in (EXTENT_TREE, ROOT_TREE, FREE_SPACE_TREE))

    # The new block is the first of a free space in a block group of metadata.
    # (mkfs.btrfs leaves free spaces of a chunk that it made at first, too.)
    at, place = next(
        (index, key)
        for index, (key, _) in enumerate(spaces)
        if key[1] == FREE_SPACE_EXTENT
        and any(c.kind & METADATA and c.logical <= key[0] < c.logical + c.length for c in system.chunks)
        and key[2] > system.node_bytes
    )
    logical = place[0]
    spaces[at] = ((logical + system.node_bytes, FREE_SPACE_EXTENT, place[2] - system.node_bytes), spaces[at][1])

    groups = []
    for key, data in extents:
        if key[1] == GROUP_ITEM:
            used = struct.unpack_from("<Q", data)[0]
            used += system.node_bytes if key[0] <= logical < key[0] + key[2] else 0
            groups.append((key, struct.pack("<Q", used) + data[8:]))
    extents = [(key, data) for key, data in extents if key[1] != GROUP_ITEM]
    item = struct.pack("<3QBQ", 1, system.generation, TREE_BLOCK, TREE_BLOCK_REF, GROUP_TREE)
    extents.append(((logical, METADATA_ITEM, 0), item))
    root = bytearray(next(data for key, data in roots if key[:2] == (FREE_SPACE_TREE, ROOT_ITEM)))
    struct.pack_into("<Q", root, 176, logical)
    roots.append(((GROUP_TREE, ROOT_ITEM, 0), bytes(root)))

    leaf(system, headers[EXTENT_TREE], logical, GROUP_TREE, groups)
    for tree, items in ((EXTENT_TREE, extents), (ROOT_TREE, roots), (FREE_SPACE_TREE, spaces)):
        leaf(system, headers[tree], system.roots[tree], tree, items)
    for device, file in system.files.items():
        for place in system.supers(device):
            file.seek(place)
            superblock = bytearray(file.read(4096))
            used, compat = (struct.unpack_from("<Q", superblock, offset)[0] for offset in (120, 180))
            struct.pack_into("<Q", superblock, 120, used + system.node_bytes)
            struct.pack_into("<Q", superblock, 180, compat | COMPAT_RO_GROUP_TREE)
            superblock[:32] = SUMS[system.sum_kind](superblock[32:]).ljust(32, b"\0")
            write(system, device, place, superblock)


def main():
    if not sys.argv[1:]:
        sys.exit(__doc__)
    convert(sys.argv[1:])


if __name__ == "__main__":
    main()
