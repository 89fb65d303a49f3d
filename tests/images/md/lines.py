#!/usr/bin/env python3
"""Writes expect-lines.txt of every golden member: what mdadm 4.2 says with --examine --brief, with --verbose besides, and
with --examine --export.

The members are put together from their cut-outs in sparse files, which mdadm reads without root. The device is called
"member"."""

import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIONS = ["--brief"], ["--brief", "--verbose"], ["--export"]


def put_together(case, member):
    """A file with the superblock (and the bitmap's, which mdadm drops a superblock without) in their places."""
    with open(f"{case}/device.txt") as device, open(f"{case}/superblock.bin", "rb") as superblock:
        sectors, block = int(device.read()), superblock.read()

    def number(start, length):
        return int.from_bytes(block[start : start + length], "little", signed=True)

    if number(4, 4) == 0:
        at, bitmap = (sectors & ~127) - 128, 8
    else:
        at, bitmap = number(144, 8), number(96, 4)
    with open(member, "wb") as file:
        file.truncate(sectors * 512)
        file.seek(at * 512)
        file.write(block)
        if os.path.exists(f"{case}/bitmap.bin"):
            file.seek((at + bitmap) * 512)
            with open(f"{case}/bitmap.bin", "rb") as cut_out:
                file.write(cut_out.read())


for name in sorted(os.listdir(HERE)):
    case = f"{HERE}/{name}"
    if not os.path.exists(f"{case}/device.txt"):
        continue
    with tempfile.TemporaryDirectory() as work:
        put_together(case, f"{work}/member")
        said = [
            subprocess.run(["mdadm", "--examine", *options, "member"], cwd=work, stdout=subprocess.PIPE, check=True)
            for options in OPTIONS
        ]
    with open(f"{case}/expect-lines.txt", "wb") as out:
        out.write(b"--\n".join(run.stdout for run in said))
