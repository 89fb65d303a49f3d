#!/usr/bin/python3
"""btrfs_cases.py [--all] - the file systems of the btrfs suite, a line for each.

A case has a name, the sizes of its devices in MiB, options of mkfs.btrfs, and words for what is done to it:

    files=N            so many files by each of fio's four jobs, 2 KiB to 512 KiB
    compress=KIND      mounted with compress-force, and data that can be compressed by half
    whole              a snapshot of the whole root, then a part of the files is written again
    convert=D,M        half a balance: one block group of data to profile D, one of metadata to M (- for none)
    add, remove        a device is added after the files are there; the second is removed at last
    paused             a balance that is paused, so that its item stays
    moving             a copy of the image of an instant in the middle of a relocation
    log                the images are copied while mounted, with files that are in the log tree only
    interrupt          ashlar's scrub is ended, and goes on
    nodatacheck        `btrfs check` does not look at data: of a sound RAID5 of two devices btrfs-progs 6.2 says it is bad
    groups             a block-group tree, which btrfs_group_tree.py makes
    v1                 free space in files, as of old

Besides, each gets the files that btrfs_files.py makes: snapshots, reflinks, compressed, inline, without sums.
"""

import itertools
import sys
from collections import namedtuple

Case = namedtuple("Case", "name sizes mkfs words chosen")

# data, metadata, devices: the least that each profile can have, and odd numbers
PROFILES = {
    "single": ("single", "dup", 1),
    "dup": ("dup", "dup", 1),
    "raid0": ("raid0", "raid1", 3),
    "raid1": ("raid1", "raid1", 2),
    "raid1c3": ("raid1c3", "raid1c3", 3),
    "raid1c4": ("raid1c4", "raid1c4", 4),
    "raid10": ("raid10", "raid10", 4),
    "raid5": ("raid5", "raid5", 3),
    "raid6": ("raid6", "raid6", 4),
    "mixed": ("dup", "dup", 1),
}
SUMS = ["crc32c", "xxhash", "sha256", "blake2"]
# The combinations of the default selection: each profile and each sum, all four sums with parity.
CHOSEN = {
    "single-crc32c",
    "dup-xxhash",
    "raid0-blake2",
    "raid1-sha256",
    "raid1c3-blake2",
    "raid1c4-crc32c",
    "raid10-xxhash",
    "raid5-crc32c",
    "raid6-sha256",
    "mixed-crc32c",
}


def profile(data, metadata, *more):
    return ["-d", data, "-m", metadata, *more]


def cases():
    for (name, (data, metadata, count)), sums in itertools.product(PROFILES.items(), SUMS):
        mkfs = profile(data, metadata, "--csum", sums)
        if name == "mixed":
            mkfs += ["-M"]
        yield Case(f"{name}-{sums}", [512] * count, mkfs, ["files=24"], f"{name}-{sums}" in CHOSEN)
    more = [
        # node sizes
        ("dup-4k", [512], profile("dup", "dup", "-n", "4096"), ["files=24"], False),
        ("raid1-64k", [512, 512], profile("raid1", "raid1", "-n", "65536"), ["files=24"], False),
        ("raid5-64k", [512] * 3, profile("raid5", "raid5", "-n", "65536"), ["files=24"], False),
        ("raid6-4k", [512] * 4, profile("raid6", "raid6", "-n", "4096"), ["files=24"], False),
        # numbers of devices
        ("raid1-x3", [400, 700, 500], profile("raid1", "raid1"), ["files=24", "interrupt"], True),
        ("raid10-x7", [512] * 7, profile("raid10", "raid10"), ["files=24"], False),
        ("raid5-x2", [512] * 2, profile("raid5", "raid5"), ["files=24", "nodatacheck"], False),
        ("raid5-x5", [400] * 5, profile("raid5", "raid1"), ["files=24"], False),
        ("raid6-x3", [512] * 3, profile("raid6", "raid6"), ["files=24"], False),
        ("raid6-x6", [300, 400, 500, 600, 700, 800], profile("raid6", "raid1c3"), ["files=48", "interrupt"], True),
        ("mixed-raid1", [256] * 2, profile("raid1", "raid1", "-M"), ["files=24"], False),
        # Linux says that there is no space for a scrub of mixed block groups with parity, if mounted read-only.
        ("mixed-raid10", [256] * 4, profile("raid10", "raid10", "-M"), ["files=24"], False),
        # what was done to it
        ("zlib", [512] * 2, profile("raid1", "raid1"), ["files=24", "compress=zlib"], False),
        ("lzo", [512] * 4, profile("raid10", "raid10"), ["files=24", "compress=lzo"], False),
        ("zstd", [512] * 4, profile("raid6", "raid1c3"), ["files=24", "compress=zstd"], True),
        ("whole", [512] * 2, profile("raid1", "raid1"), ["files=32", "whole"], False),
        ("halved-raid1", [700] * 3, profile("single", "dup"), ["files=48", "whole", "convert=raid1,raid1"], True),
        ("halved-raid6", [700] * 4, profile("raid10", "raid1"), ["files=48", "convert=raid6,raid1c4"], False),
        ("halved-dup", [900], profile("single", "single"), ["files=48", "convert=dup,dup"], False),
        ("paused", [512] * 2, profile("raid1", "raid1"), ["files=48", "whole", "paused"], True),
        ("moving", [600], profile("dup", "dup"), ["files=24", "moving"], False),
        ("moving-4k", [600], profile("single", "dup", "-n", "4096"), ["files=48", "moving"], False),
        ("moved", [600] * 3, profile("raid1", "raid1"), ["files=32", "add", "remove"], False),
        ("log-raid1", [512] * 2, profile("raid1", "raid1"), ["files=24", "whole", "log"], True),
        ("log-raid5", [512] * 3, profile("raid5", "raid5", "--csum", "xxhash"), ["files=24", "log"], False),
        # formats
        ("old", [512], profile("dup", "dup", "-O", "^no-holes,^skinny-metadata,^extref", "-R", "^free-space-tree"),
         ["files=24", "whole", "v1"], False),
        ("groups-raid1", [512] * 2, profile("raid1", "raid1"), ["files=24", "whole", "groups"], True),
        ("groups-raid5", [512] * 4, profile("raid5", "raid1c3", "--csum", "xxhash"), ["files=24", "groups"], False),
        ("quota", [512] * 2, profile("raid1", "raid1", "-R", "quota"), ["files=24", "whole"], False),
    ]  # fmt: skip
    for name, sizes, mkfs, words, chosen in more:
        yield Case(name, sizes, mkfs, words, chosen)


def main():
    if sys.argv[1:] not in ([], ["--all"]):
        sys.exit(__doc__)
    for case in cases():
        if case.chosen or sys.argv[1:]:
            print(case.name, ",".join(map(str, case.sizes)), " ".join(case.mkfs), " ".join(case.words), sep="\t")


if __name__ == "__main__":
    main()
