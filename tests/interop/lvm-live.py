#!/usr/bin/python3
"""lvm-live.py - change a served volume group at random, and verify its volumes; the work of lvm-live.sh.

    lvm-live.py run --ashlar FILE --work DIR --seed N --changes N --every N
    lvm-live.py sum DEVICE BLOCKS

`run` keeps a model of each volume that it makes: the version of each block of 4 KiB that it has written, or nothing for a
block that nobody has written since the volume got it. At the end it writes to DIR what lvs must list (wanted), and for each
volume which blocks are known, and their checksum (sums), which `sum` prints.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

BLOCK = 4096
MIB = 1 << 20
EXTENT = MIB // BLOCK


def block(volume, version, at):
    """The contents of a block: `volume` is a number that no other volume has."""
    return hashlib.sha256(f"{volume} {version} {at}".encode()).digest() * (BLOCK // 32)


def checksum(read, known):
    total = hashlib.sha256()
    for at in known:
        total.update(read(at * BLOCK, BLOCK))
    return total.hexdigest()


def print_sum(device, blocks):
    with open(blocks) as file:
        known = json.load(file)
    fd = os.open(device, os.O_RDONLY)
    print(checksum(lambda at, size: os.pread(fd, size, at), known))


class Volume:
    def __init__(self, name, number, extents):
        self.name, self.number, self.origin = name, number, None
        # For each block the volume number and version of what was written; None: unknown.
        self.blocks = [None] * (extents * EXTENT)

    @property
    def extents(self):
        return len(self.blocks) // EXTENT

    def resize(self, extents):
        self.blocks = self.blocks[: extents * EXTENT]
        self.blocks += [None] * (extents * EXTENT - len(self.blocks))


class Live:
    def __init__(self, options):
        self.ashlar, self.work, self.every = options.ashlar, options.work, options.every
        self.dice = random.Random(options.seed)
        self.volumes = {}
        self.disks = [f"{self.work}/disk{n}" for n in range(4)]
        self.number = 0
        self.kills = self.refused = self.done = self.merges = 0
        self.daemon = None
        self.load = []
        self.log = open(f"{self.work}/log", "a")

    # The daemon

    def start(self):
        command = [self.ashlar, "serve", *self.disks]
        command += ["--nbd", f"unix:{self.work}/nbd", "--control", f"{self.work}/control"]
        self.daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.daemon.stdout:
            if line == "ready\n":
                break
        else:
            sys.exit("the daemon did not start")
        here = os.path.dirname(os.path.realpath(__file__))
        for keep in (0, 1):
            writer = [f"{here}/crash.py", "write", "--seed", f"keep{keep}"]
            writer += ["--state", f"{self.work}/state{keep}", "--log", f"{self.work}/flushed{keep}"]
            writer += [f"nbd:{self.work}/nbd:vg/keep{keep}"]
            self.load.append(subprocess.Popen(["/usr/bin/python3", *writer], stdout=self.log, stderr=self.log))
        uri = f"nbd+unix:///vg%2fkeep2?socket={self.work}/nbd"
        fio = ["fio", "--name=keep2", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw", "--bs=4k", "--iodepth=4"]
        fio += ["--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1", "--time_based", "--runtime=3600", "--thinktime=1ms", "--thread"]
        # Some of its files go to the current directory.
        with open(f"{self.work}/fio", "w") as said:
            fio.append("--size=16M")
            self.load.append(subprocess.Popen(fio, stdout=said, stderr=said, cwd=self.work, start_new_session=True))

    def kill(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()
        self.kills += 1
        self.end_load()
        self.copy_load()
        self.verify_load()

    def end_load(self):
        for writer in self.load[:2]:
            if writer.wait(timeout=60) != 0:
                sys.exit("a writer has failed: see the log")
        self.end_fio()
        self.load = []

    def end_fio(self):
        """Without its server fio polls for ever; a failed verification has ended it. Its job is a thread: a process would be in a session of its own."""
        os.killpg(self.load[2].pid, signal.SIGKILL)
        self.load[2].wait(timeout=60)
        with open(f"{self.work}/fio") as file:
            said = file.read()
        if "verify:" in said or "bad header" in said or "crc32c:" in said:
            sys.exit(f"fio read what it had not written:\n{said}")

    def stop(self):
        """Ends the load first, so that it ends without an error of its own."""
        self.end_fio()
        for writer in self.load[:2]:
            writer.terminate()
            writer.wait(timeout=60)
        self.load = []
        subprocess.run([self.ashlar, "stop", "--control", f"{self.work}/control"], check=True)
        if self.daemon.wait() != 0:
            sys.exit("the daemon did not end cleanly")

    # Its volumes

    def open(self, name):
        import nbd

        client = nbd.NBD()
        try:
            client.connect_uri(f"nbd+unix:///vg%2f{name}?socket={self.work}/nbd")
        except nbd.Error as error:
            sys.exit(f"{name}: {error}; the daemon's exit code: {self.daemon.poll()}")
        return client

    def write(self, volume, at, count):
        """Writes blocks; the version is the number of writes so far."""
        self.number += 1
        data = b"".join(block(volume.number, self.number, n) for n in range(at, at + count))
        client = self.open(volume.name)
        for piece in range(0, count, EXTENT):
            client.pwrite(data[piece * BLOCK : (piece + EXTENT) * BLOCK], (at + piece) * BLOCK)
        client.shutdown()
        for n in range(at, at + count):
            volume.blocks[n] = (volume.number, self.number, n)

    def fill(self, volume):
        """Writes what is unknown."""
        unknown = [n for n, known in enumerate(volume.blocks) if known is None]
        if unknown:
            self.write(volume, unknown[0], unknown[-1] + 1 - unknown[0])

    def check(self, volume):
        client = self.open(volume.name)
        if client.get_size() != len(volume.blocks) * BLOCK:
            sys.exit(f"{volume.name} has {client.get_size()} bytes, not {len(volume.blocks) * BLOCK}")
        for at in range(0, len(volume.blocks), EXTENT):
            data = client.pread(MIB, at * BLOCK)
            for n in range(EXTENT):
                known = volume.blocks[at + n]
                if known is not None and data[n * BLOCK : (n + 1) * BLOCK] != block(*known):
                    sys.exit(f"{volume.name}: block {at + n} is not what was written: {known}")
        client.shutdown()

    def command(self, *args):
        return [self.ashlar, "lvm", args[0], "--control", f"{self.work}/control", *args[1:]]

    def listed(self):
        """The volumes of the group: name, origin and extents."""
        run = self.command("lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", "lv_name,origin,lv_size")
        report = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        rows = report["report"][0]["lv"]
        return {row["lv_name"]: (row["origin"], int(row["lv_size"])) for row in rows}

    def members(self):
        run = self.command("vgs", "--noheadings", "-o", "pv_count", "vg")
        return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)

    # Changes: each returns the command, and what it does to the model

    def plan(self):
        dice, volumes = self.dice, self.volumes
        free = [v for v in volumes.values()]
        origins = [v for v in free if v.origin is None]
        snapshots = [v for v in free if v.origin is not None]
        plain = [v for v in origins if not any(s.origin is v for s in snapshots)]
        self.number += 1
        name = f"v{self.number}"
        kinds = ["create"] * (3 if len(free) < 12 else 0)
        kinds += ["snapshot"] * 4 if origins and len(free) < 14 else []
        kinds += ["extend", "rename", "reduce"] if plain else []
        kinds += ["rename"] if free else []
        kinds += ["remove"] * (2 if len(free) < 8 else 5) if free else []
        kinds += ["merge"] * 2 if snapshots else []
        kinds += ["vgextend", "vgreduce"]
        kind = dice.choice(kinds)
        if kind.startswith("vg"):
            return [kind, "vg", self.disks[3]], lambda: None
        if kind == "create":
            extents, stripes = dice.randint(1, 4), dice.choice([1, 1, 2])
            new = Volume(name, self.number, extents + extents % stripes)
            args = ["lvcreate", "-n", name, "-l", str(new.extents), "-i", str(stripes), "vg"]

            def apply():
                volumes[name] = new

            return args, apply
        if kind == "snapshot":
            origin = dice.choice(origins)
            new = Volume(name, self.number, origin.extents)
            new.origin, new.blocks = origin, list(origin.blocks)
            args = ["lvcreate", "-s", "-n", name, "-l", "200%ORIGIN", "-c", dice.choice(["4", "16", "64"]), f"vg/{origin.name}"]

            def apply():
                volumes[name] = new

            return args, apply
        if kind in ("extend", "reduce"):
            volume = dice.choice(plain)
            extents = volume.extents + dice.randint(1, 2) * (1 if kind == "extend" else -1)
            args = [f"lv{kind}", "-l", str(max(extents, 1)), f"vg/{volume.name}"] + (["-f"] if kind == "reduce" else [])
            return args, lambda: volume.resize(self.listed()[volume.name][1] // MIB)
        volume = dice.choice(free if kind != "merge" else snapshots)
        if kind == "rename":

            def rename():
                del volumes[volume.name]
                volume.name = name
                volumes[name] = volume

            return ["lvrename", "vg", volume.name, name], rename
        if kind == "remove":

            def remove():
                for gone in [volume] + [s for s in snapshots if s.origin is volume]:
                    del volumes[gone.name]

            return ["lvremove", "-y", f"vg/{volume.name}"], remove

        def merge():
            self.merges += 1
            volume.origin.blocks = volume.blocks
            del volumes[volume.name]

        return ["lvconvert", "--merge", *dice.choice([[], ["-b"]]), f"vg/{volume.name}"], merge

    def change(self):
        args, apply = self.plan()
        ran = subprocess.run(self.command(*args), capture_output=True, text=True)
        if ran.returncode == 0:
            apply()
            self.done += 1
        elif ran.returncode == 5:
            # No room, or a merge is under way, or a size that is none.
            known = ("are free", "being merged", "at least", "not less", "not larger", "stripe", "keeps its size")
            # The fourth disk is in the group, or is not, or has volumes, or was marked when the daemon was killed.
            known += ("already in volume group", "not found in volume group", "Cannot remove the physical volume", "marked as used")
            if not any(word in ran.stderr for word in known):
                sys.exit(f"{args}: {ran.stderr}")
            self.refused += 1
        else:
            sys.exit(f"{args}: {ran.returncode}: {ran.stderr}")
        self.use()

    def use(self):
        """Fills new extents, and writes somewhere."""
        for volume in list(self.volumes.values()):
            if volume.origin is None or None in volume.blocks:
                self.fill(volume)
        if self.volumes:
            volume = self.dice.choice(list(self.volumes.values()))
            at = self.dice.randrange(len(volume.blocks))
            self.write(volume, at, min(self.dice.randint(1, 40), len(volume.blocks) - at))
        if self.volumes and self.dice.random() < 0.2:
            self.check(self.dice.choice(list(self.volumes.values())))

    def change_and_kill(self):
        """Kills the daemon in the middle of a change, which has then taken place or not."""
        args, apply = self.plan()
        before = self.signature()
        changing = subprocess.Popen(self.command(*args), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.dice.random() * 0.03)
        self.kill()
        code = changing.wait(timeout=60)
        self.start()
        now = {name: (origin, size) for name, (origin, size) in self.listed().items() if not name.startswith("keep")}
        if code == 0 and args[0].startswith("vg"):
            if self.members() != {"vgextend": 4, "vgreduce": 3}[args[0]]:
                sys.exit(f"{args} was acknowledged, and is lost")
        elif code == 0 and now == before and args[0] != "lvconvert":
            sys.exit(f"{args} was acknowledged, and is lost")
        if now != before:
            apply()
        if {name: origin for name, (origin, _) in now.items()} != {name: origin for name, (origin, _) in self.signature().items()}:
            sys.exit(f"after {args} there are {now}")

    def signature(self):
        """What lvs must list, but for the sizes of stores."""
        known = self.listed()
        rows = {}
        for volume in self.volumes.values():
            rows[volume.name] = (volume.origin.name if volume.origin else "", known.get(volume.name, ("", 0))[1])
        return rows

    def verify(self):
        for volume in self.volumes.values():
            self.check(volume)

    def verify_load(self):
        """What the writers flushed is there; the next ones go on from there."""
        here = os.path.dirname(os.path.realpath(__file__))
        for keep in (0, 1):
            verifier = [f"{here}/crash.py", "verify", "--seed", f"keep{keep}"]
            verifier += ["--state", f"{self.work}/state{keep}", "--log", f"{self.work}/flushed{keep}"]
            subprocess.run(["/usr/bin/python3", *verifier, f"{self.work}/keep{keep}"], check=True, stdout=self.log)

    def copy_load(self):
        """Copies the volumes of the writers out of the group as it is on the disks, without a daemon."""
        disks = ",".join(self.disks)
        run = [self.ashlar, "lvm", "lvs", "--devices", disks, "--reportformat", "json", "-o", "lv_name,devices"]
        rows = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)["report"][0]["lv"]
        for row in rows:
            if row["lv_name"] in ("keep0", "keep1"):
                disk, extent = row["devices"].rstrip(")").split("(")
                with open(disk, "rb") as source, open(f"{self.work}/{row['lv_name']}", "wb") as copy:
                    source.seek((int(extent) + 1) * MIB)
                    copy.write(source.read(16 * MIB))

    def run(self, changes):
        self.start()
        for number in range(1, changes + 1):
            if number % self.every:
                self.change()
                continue
            if self.dice.random() < 0.5:
                self.change_and_kill()
            else:
                self.kill()
                self.start()
            self.verify()
        # A commit that was cut by the last kill may have left physical volumes behind, of which vgck warns.
        done = self.done
        while self.done == done:
            self.change()
        self.stop()
        self.copy_load()
        self.verify_load()
        self.start()
        self.verify()
        while any("merg" in row for row in self.statuses()):
            time.sleep(0.2)
        with open(f"{self.work}/wanted", "w") as file:
            for name, (origin, size) in self.listed().items():
                file.write(" ".join(filter(None, [name, origin, str(size)])) + "\n")
        subprocess.run(["sort", "-o", f"{self.work}/wanted", f"{self.work}/wanted"], check=True)
        with open(f"{self.work}/sums", "w") as file:
            for volume in self.volumes.values():
                known = [n for n, what in enumerate(volume.blocks) if what is not None]
                with open(f"{self.work}/{volume.name}.blocks", "w") as blocks:
                    json.dump(known, blocks)
                total = hashlib.sha256()
                for n in known:
                    total.update(block(*volume.blocks[n]))
                file.write(f"{volume.name} {volume.name}.blocks {total.hexdigest()}\n")
        members = self.members()
        self.stop()
        if members == 3:
            # Perhaps it is marked, and in no group.
            run = [self.ashlar, "lvm", "pvremove", "-ff", "-y", "--devices", ",".join(self.disks), self.disks[3]]
            subprocess.run(run, capture_output=True)
        print(f"{self.done} changes, {self.refused} refused, {self.merges} merges, {self.kills} kills")

    def statuses(self):
        run = self.command("lvs", "--noheadings", "-o", "lv_attr")
        said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        return ["merging" if row.strip().startswith("O") else "" for row in said.splitlines()]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("verb", choices=["run", "sum"])
    parser.add_argument("arguments", nargs="*")
    for option in ("--ashlar", "--work"):
        parser.add_argument(option)
    for option in ("--seed", "--changes", "--every"):
        parser.add_argument(option, type=int)
    options = parser.parse_intermixed_args()
    if options.verb == "sum":
        print_sum(*options.arguments)
    else:
        Live(options).run(options.changes)


main()
