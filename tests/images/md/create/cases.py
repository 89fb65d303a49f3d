"""Prints cases.txt: the cross product of what matters for a new superblock, then special cases.

Sizes of members are in sectors, chunks and sizes in KiB, as mdadm takes them."""

M = 2048
G = 1024 * M
T = 1024 * G

print("# version level layout chunk size bitmap options raid-devices members...")
for version in ("1.0", "1.1", "1.2"):
    for level, layout, count in (("0", "-", 2), ("1", "-", 2), ("10", "n2", 4), ("10", "f2", 3), ("10", "o2", 5)):
        for size in (100 * M, 9 * G + 3, 210 * G, 3 * T + 4096):
            for bitmap in ("auto", "internal"):
                if level == "0" and bitmap == "internal":
                    continue
                print(version, level, layout, "-", "-", bitmap, "-", count, *[size] * count)

print("# sizes around the steps of the bitmap space and the headroom")
for version in ("1.0", "1.2"):
    for size in (128, 4095, 8 * M, 8 * G + 8, 8 * G + 9, 200 * G + 127, 200 * G + 128, 16 * T):
        print(version, 1, "-", "-", "-", "auto", "-", 2, size, size)
        print(version, 10, "n2", 64, "-", "internal", "-", 2, size, size + 1)

print("# chunks, which bound the headroom from below")
for chunk in (4, 64, 1024, 65536, 262144):
    print("1.2", 10, "n2", chunk, "-", "none", "-", 2, 4 * G, 4 * G)
    print("1.1", 0, "-", chunk, "-", "auto", "-", 3, 4 * G, 4 * G + 24, 4 * G)
    print("1.0", 10, "f2", chunk, "-", "internal", "-", 3, 4 * G + 17, 4 * G, 4 * G + 5000)

print("# RAID0 of unequal members must say which layout it has")
for layout in ("-", "original", "alternate", "dangerous"):
    print("1.2", 0, layout, "-", "-", "auto", "-", 3, 200 * M, 100 * M, 300 * M)
print("1.2", 0, "alternate", 12, "-", "auto", "-", 2, 100 * M, 100 * M + 7)
print("1.0", 0, "original", 64, "-", "auto", "-", 2, 100 * M, 100 * M + 1)
print("1.1", 0, "original", 64, "-", "auto", "-", 2, 100 * M, 100 * M)

print("# given sizes, offsets, bitmap chunks")
print("1.2", 1, "-", "-", 50001, "none", "-", 2, 100 * M, 100 * M)
print("1.0", 1, "-", "-", 50001, "internal", "-", 2, 100 * M, 100 * M)
print("1.2", 10, "n2", "-", 50001, "internal", "-", 4, *[100 * M] * 4)
print("1.2", 10, "n3", 128, 50001, "internal", "assume-clean", 4, *[100 * M] * 4)
print("1.1", 0, "-", 128, 50001, "auto", "-", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "internal", "data-offset=128M", 2, 9 * G, 9 * G)
print("1.1", 10, "o2", "-", "-", "none", "data-offset=64K", 3, *[100 * M] * 3)
print("1.2", 10, "n2", "-", "-", "none", "data-offset=12K", 2, 100 * M, 100 * M)
print("1.2", 0, "-", "-", "-", "auto", "data-offset=1M", 2, 100 * M, 100 * M + 1)
for bitmap in ("4096", "65536", "1048576", "536870912"):
    print("1.2", 1, "-", "-", "-", bitmap, "-", 2, 100 * M, 100 * M)
    print("1.0", 10, "f2", "-", "-", bitmap, "-", 3, *[100 * M] * 3)
print("1.2", 1, "-", "-", "-", "1048576", "-", 2, 3 * T, 3 * T)

print("# members: missing, spare, write-mostly, failfast, many")
print("1.2", 1, "-", "-", "-", "auto", "-", 2, 100 * M, "missing")
print("1.2", 1, "-", "-", "-", "auto", "-", 3, "missing", 9 * G, 100 * M)
print("1.2", 10, "n2", "-", "-", "internal", "-", 4, 100 * M, "missing", 100 * M, "missing", 200 * M)
print("1.2", 1, "-", "-", "-", "auto", "-", 2, *[100 * M] * 4)
print("1.0", 10, "n2", "-", "-", "auto", "assume-clean", 3, *[100 * M] * 4)
print("1.2", 1, "-", "-", "-", "internal", "write-behind=300", 3, 100 * M, f"{100 * M}w", f"{100 * M}w")
print("1.2", 1, "-", "-", "-", "auto", "assume-clean,failfast", 2, 100 * M, f"{100 * M}w")
print("1.2", 1, "-", "-", "-", "internal", "delay=30", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "name=01234567890123456789012345678901", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "homehost=box", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "homehost=box,name=other:thing", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "homehost=a-host-of-a-very-long-name,name=eleven-char", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "no-bad-block-log", 2, 100 * M, 100 * M)
print("1.2", 1, "-", "-", "-", "auto", "-", 128, *[16 * M] * 128)
print("1.2", 1, "-", "-", "-", "auto", "-", 128, *[16 * M] * 129)

# Flags of members are not in what mdadm writes: the kernel, which is told them, adds them.
print("# version 0.90; mdadm 4.2 makes no RAID0 of it")
for level, layout, count in (("1", "-", 2), ("10", "n2", 4), ("10", "f2", 3), ("10", "o2", 5)):
    for size in (100 * M, 210 * G + 77, 3 * T):
        for bitmap in ("none", "internal"):
            print("0.90", level, layout, "-", "-", bitmap, "-", count, *[size] * count)
print("0.90", 1, "-", "-", "-", "auto", "-", 2, 210 * G, 210 * G)
print("0.90", 10, "n2", 64, 50001, "none", "-", 4, *[100 * M + 9] * 4)
print("0.90", 1, "-", "-", 50001, "none", "-", 2, 100 * M, 100 * M)
print("0.90", 1, "-", "-", "-", 1 << 20, "delay=7", 2, 100 * M + 127, 100 * M + 128)
print("0.90", 1, "-", "-", "-", "none", "-", 3, 100 * M, "missing", 90 * M)
print("0.90", 1, "-", "-", "-", "none", "-", 2, 100 * M, 100 * M, 101 * M, 102 * M)
print("0.90", 1, "-", "-", "-", "none", "assume-clean", 2, 100 * M, 100 * M + 300)
print("0.90", 1, "-", "-", "-", "none", "-", 2, 128, 256)
print("0.90", 1, "-", "-", "-", "none", "-", 2, 255, 256)
print("0.90", 1, "-", "-", "-", "none", "-", 2, 5 * T, 5 * T)
print("0.90", 1, "-", "-", "-", "none", "-", 27, *[10 * M] * 27)
print("0.90", 1, "-", "-", "-", "none", "-", 28, *[10 * M] * 28)
print("0.90", 1, "-", "-", "-", "none", "-", 25, *[10 * M] * 28)
print("0.90", 0, "-", "-", "-", "auto", "-", 2, 100 * M, 100 * M)
