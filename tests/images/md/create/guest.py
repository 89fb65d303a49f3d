"""Runs in the guest: makes every array of cases.txt with mdadm and writes what mdadm wrote.

A line of bytes is hex with runs of eight or more equal bytes written as XX*COUNT."""

import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = "/tmp/disks"
UUID = "00112233:44556677:8899aabb:ccddeeff"


def run(*args, **kwargs):
    return subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def pack(data):
    out = []
    for match in re.finditer(rb"(.)\1{7,}|(?:(?!(.)\2{7}).)+", data, re.S):
        part = match.group()
        out.append(f"{part[0]:02x}*{len(part)}" if match.group(1) else part.hex())
    return " ".join(out)


def attach(sectors):
    path = f"{WORK}/{attach.count}"
    attach.count += 1
    with open(path, "wb") as file:
        file.truncate(sectors * 512)
    return run("losetup", "-f", "--show", path, check=True).stdout.strip()


attach.count = 0


def arguments(version, level, layout, chunk, size, bitmap, options, raid_devices, members):
    args = ["--run", "--force", f"--metadata={version}", f"--level={level}", f"--uuid={UUID}"]
    args.append(f"--raid-devices={raid_devices}")
    if layout != "-":
        args.append(f"--layout={layout}")
    if chunk != "-":
        args.append(f"--chunk={chunk}")
    if size != "-":
        args.append(f"--size={size}")
    if bitmap.isdigit():
        args += ["--bitmap=internal", f"--bitmap-chunk={int(bitmap) // 1024}K"]
    elif bitmap != "auto":
        args.append(f"--bitmap={bitmap}")
    spares = len(members) - int(raid_devices)
    if spares:
        args.append(f"--spare-devices={spares}")
    names = {"name": "t", "homehost": "<none>"}
    failfast = False
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key in names:
            names[key] = value
        elif key == "failfast":
            failfast = True
        elif key not in ("-", "no-bad-block-log"):
            args.append(f"--{option}")
    args += [f"--{key}={value}" for key, value in names.items()]
    with open("/tmp/mdadm.conf", "w") as conf:
        conf.write("CREATE bbl=no\n" if "no-bad-block-log" in options else "")
    args.append("--config=/tmp/mdadm.conf")
    devices = []
    write_mostly = False
    for member in members:
        wanted = member.endswith("w")
        if wanted != write_mostly:
            args.append("--write-mostly" if wanted else "--readwrite")
            write_mostly = wanted
        if failfast:
            args.append("--failfast")
            failfast = False
        if member == "missing":
            args.append("missing")
        else:
            device = attach(int(member.rstrip("w")))
            devices.append((len(args), device))
            args.append(device)
    return args, [device for _, device in devices]


def dump(out, number, member, device, version):
    sectors = int(member.rstrip("w"))
    at = {"0.90": (sectors & ~127) - 128, "1.0": sectors - 16 & ~7, "1.1": 0, "1.2": 8}[version] * 512
    with open(device, "rb") as file:
        file.seek(at)
        block = file.read(4096)
        if version == "0.90":
            used, bitmap, offset = len(block), block[133] & 1, 8
        else:
            used, bitmap = 256 + 2 * int.from_bytes(block[220:224], "little"), block[8] & 1
            offset = int.from_bytes(block[96:100], "little", signed=True)
        print(f"{number} {pack(block[:used])}", file=out)
        if bitmap:
            file.seek(at + offset * 512)
            print(f"bitmap {pack(file.read(8192))}", file=out)


def main():
    os.environ["TZ"] = "UTC"
    os.mkdir(WORK)
    run("modprobe", "loop", check=True)
    run("mount", "-t", "tmpfs", "-o", "size=400m", "none", WORK, check=True)
    with open("/tmp/random", "wb") as file:
        file.write(bytes(range(0xA0, 0xB0)))
    run("mount", "--bind", "/tmp/random", "/dev/urandom", check=True)
    with open(f"{HERE}/cases.txt") as cases, open(f"{HERE}/expect.txt", "w") as out:
        for line in cases:
            if line.startswith("#"):
                continue
            version, level, layout, chunk, size, bitmap, options, raid_devices, *members = line.split()
            args, devices = arguments(
                version, level, layout, chunk, size, bitmap, options, raid_devices, members)
            environment = dict(os.environ, LD_PRELOAD=sys.argv[1])
            result = run("mdadm", "--create", "/dev/md0", *args, env=environment, stdin=subprocess.DEVNULL)
            print(f"case {line.strip()}", file=out)
            if "ADD_NEW_DISK for" in result.stdout:
                present = [number for number, member in enumerate(members) if member != "missing"]
                same = len(set(members)) == 1 and "failfast" not in options
                for index, number in enumerate(present):
                    if not same or number == present[-1]:
                        dump(out, number, members[number], devices[index], version)
            else:
                print("refused", file=out)
                print(line, result.stdout, flush=True)
            for device in devices:
                run("losetup", "-d", device)
            for name in os.listdir(WORK):
                os.unlink(f"{WORK}/{name}")


main()
