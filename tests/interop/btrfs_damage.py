#!/usr/bin/python3
"""btrfs_damage.py - spoil sectors of btrfs images so that what is left suffices, or does not, and keep a list of it.

    btrfs_damage.py selftest      on tests/images/btrfs

`spoil` does so for some copies of data, of tree blocks of each tree, parities and superblocks, always so that as much is
left as the profile needs; if told so also for all copies of some data. Where things are it knows from btrfs_tree.py. What is spoilt is a sector of 4 KiB, or a part of it, and differs from what was there.
"""

import os
import random
import struct
import sys
import tempfile
from collections import Counter, namedtuple

from btrfs_tree import EXTENT_ITEM, EXTENT_TREE, FS_TREE, RAID5, RAID6, STRIPE, SUMS, SUPERS, FileSystem, Stripe

SECTOR = 4096
# kind: data, node, parity or super. `what`: the tree of a node, else the kind. `logical`: of the sector or tree block.
Spoilt = namedtuple("Spoilt", "kind what logical device physical length how")


def stained(draw, old, how, elsewhere):
    """What is written instead of a sector: it is never the same, and never right."""
    if how == "bit":
        new = bytearray(old)
        # In a tree block the first 32 bytes are for its sum: what a short one does not use, no reader verifies.
        new[draw.randrange(32, len(old))] ^= 1 << draw.randrange(8)
    elif how == "part":  # one sector of 512 bytes
        new = bytearray(old)
        at = draw.randrange(len(old) // 512) * 512
        new[at : at + 512] = draw.randbytes(512)
    elif how == "zero":
        new = bytearray(len(old))
    elif how == "elsewhere":  # a write that went astray
        new = bytearray(elsewhere)
    else:
        new = bytearray(draw.randbytes(len(old)))
    return bytes(new) if new != old else draw.randbytes(len(old))


class Spoiler:
    def __init__(self, system, seed):
        self.system = system
        self.draw = random.Random(seed)
        self.done = []
        self.bad = {}  # row or logical address of a unit -> devices that are bad there
        self.taken = set()  # (device, physical sector)
        # Read while the images are sound.
        self.summed = [logical for logical, _ in system.summed()]
        self.nodes_by_tree = {}
        self.leaves = set()
        for node in system.nodes().values():
            self.nodes_by_tree.setdefault(node.tree, []).append(node.logical)
            if node.level == 0:
                self.leaves.add(node.logical)
        # Sectors of data extents that have more than one reference.
        self.shared = set()
        for key, item in system.items(system.roots[EXTENT_TREE]):
            if key[1] == EXTENT_ITEM and struct.unpack_from("<Q", item)[0] > 1:
                self.shared |= set(range(key[0], key[0] + key[2], SECTOR))

    def allowed(self, logical, place, stripe):
        """Whether the copy may be lost besides what is lost already; if so it counts as lost."""
        bad = self.bad.setdefault(place.row or logical, set())
        # A DUP has two copies on one device.
        lost = stripe.device if place.row else stripe
        if len(bad | {lost}) > self.system.tolerance(logical):
            return False
        bad.add(lost)
        return True

    def write(self, kind, what, logical, stripe, length=SECTOR, how=None):
        if (stripe.device, stripe.physical) in self.taken:
            return False
        self.taken.add((stripe.device, stripe.physical))
        how = how or self.draw.choice(["bit", "part", "zero", "elsewhere", "garbage", "garbage"])
        old = self.system.at(stripe, length)
        away = Stripe(stripe.device, stripe.physical - length if stripe.physical > length + SUPERS[0] else SUPERS[0])
        new = stained(self.draw, old, how, self.system.at(away, length))
        with open(self.system.paths[stripe.device], "r+b") as image:
            image.seek(stripe.physical)
            image.write(new)
        self.done.append(Spoilt(kind, what, logical, stripe.device, stripe.physical, length, how))
        return True

    def data(self, count):
        self.draw.shuffle(self.summed)
        for logical in self.summed:
            if count == 0:
                break
            place = self.system.place(logical)
            copies = list(place.copies)
            self.draw.shuffle(copies)
            for copy in copies[: self.draw.choice([1, 1, 1, 2])]:  # sometimes two of three copies
                if self.allowed(logical, place, copy):
                    count -= self.write("data", "data", logical, copy) and count > 0

    def nodes(self, each):
        """Some tree blocks of each tree, a sector of one copy."""
        for tree, nodes in self.nodes_by_tree.items():
            left = each
            self.draw.shuffle(nodes)
            for logical in nodes:
                if left == 0:
                    break
                place = self.system.place(logical)
                copy = self.draw.choice(place.copies)
                if self.allowed(logical, place, copy):
                    inside = self.draw.randrange(self.system.node_bytes // SECTOR) * SECTOR
                    at = Stripe(copy.device, copy.physical + inside)
                    left -= self.write("node", tree, logical, at)

    def parities(self, count):
        # What has neither a sum nor a tree block beside it is not looked at by every scrub.
        used = self.summed + [logical for nodes in self.nodes_by_tree.values() for logical in nodes]
        self.draw.shuffle(used)
        for logical in used:
            place = self.system.place(logical)
            if count == 0:
                break
            if place.row:
                parity = self.draw.choice(place.parities)
                if self.allowed(logical, place, parity):
                    count -= self.write("parity", "parity", logical, parity, how="garbage")

    def superblocks(self, count, first):
        """Superblocks of devices that have more than one; the first ones only if `first`."""
        devices = [device for device in self.system.files if len(self.system.supers(device)) > 1]
        self.draw.shuffle(devices)
        for device in devices[:count]:
            choice = self.system.supers(device)[0 if first else 1 :]
            at = self.draw.choice(choice)
            how = self.draw.choice(["bit", "part", "zero", "garbage"])
            self.write("super", "super", at, Stripe(device, at), how=how)

    def lose(self, kind, what, logical, inside=0):
        """Spoils all copies of a sector, or more of its row than the parities replace; False if some are spoilt already."""
        place = self.system.place(logical)
        lost = [Stripe(stripe.device, stripe.physical + inside) for stripe in place.copies + place.parities]
        if any((stripe.device, stripe.physical) in self.taken for stripe in lost) or self.bad.get(place.row or logical):
            return False
        self.bad[place.row or logical] = set(range(99))  # nothing else may be lost there
        for index, stripe in enumerate(lost):
            self.write(kind if index < len(place.copies) else "parity", what, logical, stripe, how="garbage")
        return True

    def lasting(self, count):
        """Data of which nothing is left."""
        # Half of it in extents that more than one file has, if there are any.
        self.draw.shuffle(self.summed)
        both = [sector for sector in self.summed if sector in self.shared][: count // 2]
        for logical in both + [sector for sector in self.summed if sector not in both][: count - len(both)]:
            self.lose("data", "lost", logical)

    def lasting_node(self, tree):
        """A leaf of a tree, of which nothing is left; neither the first nor the last one, which a mount reads."""
        leaves = [logical for logical in self.nodes_by_tree[tree] if logical in self.leaves][1:-1]
        self.draw.shuffle(leaves)
        return any(self.lose("node", "lost", leaf) for leaf in leaves)


def spoil(paths, seed, lost=0, lost_leaf=False, data=24, each=2, parities=6, superblocks=1, first_super=False):
    """Spoils the images; returns what was spoilt. What nothing is left of is `lost` sectors of data, and a leaf of the
    tree of files; the rest can be repaired: `data` sectors, `each` tree blocks of each tree, parities, superblocks."""
    spoiler = Spoiler(FileSystem(paths), seed)
    # Where little may be lost the rare things come first.
    spoiler.superblocks(superblocks, first_super)
    if lost_leaf and not spoiler.lasting_node(FS_TREE):
        raise LookupError("the tree of files has no leaf to lose")
    spoiler.lasting(lost)
    spoiler.nodes(each)
    if any(chunk.kind & (RAID5 | RAID6) for chunk in spoiler.system.chunks):
        spoiler.parities(parities)
    spoiler.data(data)
    return spoiler.done


def selftest():
    from btrfs_pack import unpack

    images = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../images/btrfs")
    for name in ("single-4k", "dup-xxhash", "raid1c3", "raid6", "halved"):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as whole:
            paths = unpack(f"{images}/{name}", directory)
            before = FileSystem(unpack(f"{images}/{name}", whole))
            spoilt = spoil(paths, f"{name} 1", data=8)
            assert len({(s.device, s.physical) for s in spoilt}) == len(spoilt)
            after = FileSystem(unpack(f"{images}/{name}", whole))
            after.files = {device: open(paths[i], "rb", buffering=0) for i, device in enumerate(before.files)}
            # Just what is listed has changed, and of every sector of data a copy is right.
            changed = set()
            for i, device in enumerate(before.files):
                changed |= {(device, at) for at in differences(before.paths[device], paths[i])}
            assert changed == {(s.device, s.physical) for s in spoilt}, name
            sum_of = SUMS[before.sum_kind]
            for logical, expected in before.summed():
                place = before.place(logical)
                good = any(sum_of(after.at(copy, SECTOR)) == expected for copy in place.copies)
                if place.row:
                    stripes = place.copies + place.parities
                    bad = sum((stripe.device, stripe.physical) in changed for stripe in stripes)
                    good = good or bad <= before.tolerance(logical)
                assert good, f"{name}: nothing is left of {logical}"
            print(name, dict(Counter(s.kind for s in spoilt)))


def differences(first, second):
    """Offsets of the sectors in which two files of one size differ."""
    found = []
    with open(first, "rb") as one, open(second, "rb") as other:
        size = os.fstat(one.fileno()).st_size
        assert size == os.fstat(other.fileno()).st_size
        at = 0
        while at < size:
            # What is a hole in both is the same.
            starts = []
            for file in (one, other):
                try:
                    starts.append(os.lseek(file.fileno(), at, os.SEEK_DATA))
                except OSError:
                    starts.append(size)
            at = min(starts) // STRIPE * STRIPE
            a, b = (os.pread(file.fileno(), 1 << 20, at) for file in (one, other))
            if a != b:
                for inside in range(0, len(a), SECTOR):
                    if a[inside : inside + SECTOR] != b[inside : inside + SECTOR]:
                        found.append(at + inside)
            at += 1 << 20
    return found


def main():
    if sys.argv[1:] != ["selftest"]:
        sys.exit(__doc__)
    selftest()


if __name__ == "__main__":
    main()
