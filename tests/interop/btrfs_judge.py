#!/usr/bin/python3
"""btrfs_judge.py CASE - one case of the btrfs suite: made, damaged, scrubbed by the kernel and by ashlar, compared.

btrfs.sh runs it, with the environment that its head describes and WORK, a directory to work in. Prints what differs;
ends with 1 if anything does.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unicodedata

import btrfs_damage
import btrfs_files
from btrfs_cases import cases
from btrfs_make import MOUNT, WORK, Differs, attached, copies, make, mounted, run
from btrfs_tree import FileSystem

ASHLAR = os.environ.get("ASHLAR", "")  # empty: the kernel alone is tried, and with it this suite
COUNTERS = [
    "data_extents_scrubbed", "tree_extents_scrubbed", "data_bytes_scrubbed", "tree_bytes_scrubbed", "read_errors",
    "csum_errors", "verify_errors", "no_csum", "csum_discards", "super_errors", "malloc_errors",
    "uncorrectable_errors", "unverified_errors", "corrected_errors", "last_physical",
]  # fmt: skip
ERRORS = [name for name in COUNTERS if name.endswith("_errors")]


def same(first, second):
    return all(not btrfs_damage.differences(*pair) for pair in zip(first, second))


def totals(text):
    """The counters of each device in what `scrub start -R -d` printed."""
    found, device = {}, None
    for line in text.splitlines():
        if head := re.search(r"device .*\(id (\d+)\)", line):
            device = int(head[1])
            found[device] = {}
        elif (counter := re.fullmatch(r"\s*(\w+):\s+(\d+)", line)) and device:
            found[device][counter[1]] = int(counter[2])
    for device, counters in found.items():
        if missing := [name for name in COUNTERS if name not in counters]:
            raise Differs(f"no {', '.join(missing)} for device {device}:\n{text}")
    return found


def comparison(got, wanted):
    """What differs in the counters of each device."""
    wrong = [f"devices {sorted(got)} and not {sorted(wanted)}"] if got.keys() != wanted.keys() else []
    for device in sorted(got.keys() & wanted.keys()):
        for name in COUNTERS:
            if got[device].get(name) != wanted[device][name]:
                wrong.append(f"device {device} {name}: {got[device].get(name)}, and not {wanted[device][name]}")
    return "; ".join(wrong)


def spaced(path):
    """A path of a manifest, in which all bytes but printable ASCII are escaped, as ashlar writes it: as text."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), path.encode())
    shown = ""
    for char in raw.decode(errors="surrogateescape"):
        odd = char == "\\" or unicodedata.category(char) in ("Cc", "Cs")
        shown += "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape")) if odd else char
    return shown


def first_difference(what, got, wanted):
    """The first line in which two texts differ."""
    for number, (one, other) in enumerate(itertools.zip_longest(got.splitlines(), wanted.splitlines()), 1):
        if one != other:
            return f"{what}, line {number}: {one!r}, and not {other!r}"
    return ""


def compare(what, got, wanted):
    if wrong := comparison(got, wanted):
        raise Differs(f"{what}: {wrong}")


# -------------------------------------------------------------- the scrubs --


def scrub(*options, codes=(0, 3)):
    """The kernel's scrub of what is mounted."""
    return totals(run("btrfs", "scrub", "start", "-B", "-R", "-d", *options, MOUNT, codes=codes))


def kernel_finds(images, log, codes=(0, 3)):
    """What the kernel's read-only scrub finds on copies of the images, and the manifest of the last commit."""
    images = copies(images, "kernel")
    # The kernel replays a log even if it mounts read-only, and refuses to scrub if told not to.
    if log:
        with attached(images) as loops:
            run("btrfs", "device", "scan", *loops)
            run("btrfs", "rescue", "zero-log", loops[0])
    with mounted(images, "ro,skip_balance"):
        return scrub("-r", codes=codes), btrfs_files.manifest(MOUNT)


def changed(files, others):
    """Paths of the lines in which two manifests differ. Files of which nothing is left are such: Linux 6.18 does not
    always say that they cannot be read, but at times that there are zeroes."""
    return {line.split(" ", 4)[4] for line in set(files) ^ set(others)}


def checks(images, data):
    """Whether `btrfs check` finds nothing."""
    with attached(images) as loops:
        run("btrfs", "device", "scan", *loops)
        command = ["btrfs", "check", *(["--check-data-csum"] if data else []), loops[0]]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def inspect_internal(*words):
    """What a command of btrfs-progs prints. (What it complains of are other devices of this machine.)"""
    return subprocess.run(
        ["btrfs", "inspect-internal", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        env=dict(os.environ, TZ="UTC"), timeout=100,
    ).stdout.decode(errors="surrogateescape")  # fmt: skip


def ashlar(images, *words, codes=(0,)):
    """Runs a command of `ashlar btrfs`; returns exit code and text."""
    done = subprocess.run([ASHLAR, "btrfs", *words, *images], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
    text = done.stdout.decode(errors="surrogateescape")
    if done.returncode not in codes:
        end = text[-2000:] + done.stderr.decode(errors="replace")[-2000:]
        raise Differs(f"ashlar btrfs {' '.join(words)} ended with {done.returncode}:\n{end}")
    return done.returncode, text


def ashlar_scrub(images, *words, codes=(0, 3)):
    return ashlar(images, "scrub", *words, "--status-dir", f"{WORK}/status", codes=codes)


def taken(images, codes=(0,)):
    """The manifest of what `ashlar btrfs get` takes out of the file system."""
    ashlar(images, "get", "/", f"{WORK}/taken", codes=codes)
    files = btrfs_files.manifest(f"{WORK}/taken")
    shutil.rmtree(f"{WORK}/taken")
    return files


def takeable(files):
    """The lines of a manifest that `ashlar btrfs get` gives: no device nodes, pipes and sockets."""
    return [line for line in files if line[0] in "fdl"]


def told(text):
    """Of what `scrub start --json` printed the counters of each device, and the problems."""
    answer = json.loads(text)
    return {device["devid"]: device["counters"] for device in answer["record"]["devices"]}, answer["problems"]


def expected(totals_before, spoilt, system, counts_parity=False):
    """The totals that damage leads to: the kernel counts sectors, and of a bad tree block all. It corrects parities and
    does not count them; ashlar says verify_errors of bad ones, unverified_errors of those whose row has lost data."""
    found = {device: dict(counters) for device, counters in totals_before.items()}
    units = {}
    for bad in spoilt:
        # Of one copy of a tree block several sectors may be bad.
        at = bad.physical // system.node_bytes if bad.kind == "node" else bad.physical
        units.setdefault((bad.kind, bad.logical, bad.device, at), bad)
    names = {"data": "csum_errors", "node": "verify_errors", "super": "super_errors"}
    for bad in units.values():
        lost = bad.what == "lost"
        name = names.get(bad.kind, "verify_errors" if counts_parity and not lost else None)
        count = system.node_bytes // system.sector_bytes if bad.kind == "node" else 1
        if name:
            found[bad.device][name] += count
            if bad.kind != "super":
                found[bad.device]["uncorrectable_errors" if lost else "corrected_errors"] += count
        if counts_parity and lost and bad.kind != "parity":
            for parity in system.place(bad.logical).parities:
                found[parity.device]["unverified_errors"] += count
    return found


# --------------------------------------------------------------- the steps --


class Judged:
    """A case that was made, and what is wrong with it so far."""

    def __init__(self, case):
        self.case = case
        self.problems = []
        self.totals = None  # what the kernel's scrub counts
        self.committed = None  # the manifest, without what is in the log only
        self.sound, self.manifest = make(case)
        self.log = "log" in case.words
        self.before = FileSystem(self.sound)
        assert bool(self.before.log_root) == self.log, "a log tree where none should be, or none"

    def step(self, what, function, *arguments):
        """Runs a step; what differs in it is noted, and the next steps are tried all the same."""
        self.at = what
        started = time.monotonic()
        try:
            return function(*arguments)
        except Differs as difference:
            self.problems.append(f"{what}: {difference}")
        finally:
            if os.environ.get("TIMES"):
                print(f"    {what}: {time.monotonic() - started:.1f} s", file=sys.stderr)

    def judge(self):
        self.step("sound", self.clean)
        if self.totals is None:  # nothing to compare with
            return
        self.step("damaged", self.damaged)
        self.step("headless", self.headless)
        self.step("lost", self.lost)
        self.step("leafless", self.leafless)
        if ASHLAR and "interrupt" in self.case.words:
            self.step("interrupted", self.interrupted)

    def clean(self):
        """All agree on the totals of what nobody damaged, and reading changes nothing."""
        wanted, files = kernel_finds(self.sound, self.log)
        wrong = changed(files, self.manifest) if not self.log else set()
        if wrong or any(counters[name] for counters in wanted.values() for name in ERRORS):
            raise Differs(f"the kernel finds errors where there are none: the suite is wrong\n{wanted}\n{wrong}")
        self.totals, self.committed = wanted, files
        if ASHLAR:
            self.ashlar_scrubs(copies(self.sound, "read"), [])
            self.read()

    def read(self):
        """ashlar reads names, files, trees and superblocks as the kernel and btrfs-progs do."""
        with self.all_differences("files") as differs:
            if wrong := changed(taken(self.sound), takeable(self.committed)):
                differs(f"get: {sorted(wrong)[:9]}")
            listed = ashlar(self.sound, "ls", "-R", "/")[1].splitlines()
            if wrong := set(listed) ^ {spaced(line.split(" ", 4)[4]) for line in self.committed}:
                differs(f"ls: {sorted(wrong)[:9]}")
        with self.all_differences("btrfs-progs") as differs, attached(self.sound) as loops:
            run("btrfs", "device", "scan", *loops)
            # Its first line is its version.
            wanted = inspect_internal("dump-tree", loops[0]).partition("\n")[2]
            differs(first_difference("inspect tree", ashlar(self.sound, "inspect", "tree")[1], wanted))
            for loop, image in zip(loops, self.sound):
                wanted = inspect_internal("dump-super", "-fa", loop).replace(loop, image)
                got = ashlar([image], "inspect", "super", "-f", "-a")[1]
                differs(first_difference("inspect super", got.rstrip("\n"), wanted.rstrip("\n")))

    def damaged(self):
        """What redundancy allows to be repaired is found, just that, and repaired to the very same bytes."""
        images = copies(self.sound, "damaged")
        supers = 0 if self.log else 1  # the kernel's answer is had without the log, and with new superblocks
        # The kernel writes while it mounts a log: if tree blocks of a row are bad then, it makes a parity of the bad ones.
        each = 0 if self.log and not ASHLAR else 2
        spoilt = btrfs_damage.spoil(images, f"{self.case.name} damaged", superblocks=supers, each=each)
        wanted = expected(self.totals, spoilt, self.before)
        found, files = kernel_finds(images, self.log)
        compare("the kernel finds the damage (the suite is wrong if not)", found, wanted)
        if files != self.committed:
            raise Differs(f"the kernel cannot read {changed(files, self.committed)}: the suite is wrong")
        if ASHLAR:
            if wrong := changed(taken(images), takeable(self.committed)):
                self.problems.append(f"damaged: not taken out rightly: {sorted(wrong)[:9]}")
            self.ashlar_scrubs(images, spoilt)
        else:
            self.kernel_repairs(images, spoilt)
        self.kernel_is_content(images)

    def headless(self):
        """The first superblock of a device is bad: the others say what it was. (Linux does not find such a device.)"""
        images = copies(self.sound, "headless")
        spoilt = btrfs_damage.spoil(images, f"{self.case.name} headless", data=2, each=0, parities=0, first_super=True)
        if ASHLAR:
            self.ashlar_scrubs(images, spoilt)

    def lost(self):
        """What nothing is left of is named, with all paths, and not touched; all else is repaired."""
        images = copies(self.sound, "lost")
        supers = 0 if self.log else 1
        spoilt = btrfs_damage.spoil(images, f"{self.case.name} lost", lost=8, data=8, each=1, parities=2, superblocks=supers)
        wanted = expected(self.totals, spoilt, self.before)
        # Linux gives up a scrub, with an input/output error, at the first row of a RAID5 or RAID6 that it cannot repair.
        gives_up = any(bad.kind == "parity" and bad.what == "lost" for bad in spoilt)
        found, files = kernel_finds(images, self.log, (1,) if gives_up else (3,))
        unread = changed(files, self.committed)
        if not gives_up:
            compare("the kernel finds what is lost (the suite is wrong if not)", found, wanted)
        if not unread:
            raise Differs("the kernel can read everything: the suite is wrong")
        if ASHLAR:
            whole = [line for line in takeable(self.committed) if line.split(" ", 4)[4] not in unread]
            if wrong := changed(taken(images, (1,)), whole):
                self.problems.append(f"lost: not taken out rightly: {sorted(wrong)[:9]}")
            self.compare_paths(self.ashlar_scrubs(images, spoilt), unread)

    def leafless(self):
        """A leaf of the tree of files is lost."""
        images = copies(self.sound, "leafless")
        spoilt = btrfs_damage.spoil(
            images, f"{self.case.name} leafless", lost_leaf=True, data=8, each=1, parities=2, superblocks=0
        )
        wanted = expected(self.totals, spoilt, self.before)
        gives_up = any(bad.kind == "parity" and bad.what == "lost" for bad in spoilt)
        found, _ = kernel_finds(images, self.log, (1,) if gives_up else (3,))
        if not gives_up:
            compare("the kernel finds what is lost (the suite is wrong if not)", found, wanted)
        if ASHLAR:
            self.ashlar_scrubs(images, spoilt)

    def ashlar_scrubs(self, images, spoilt):
        """ashlar scrubs without and with writing; returns the problems that it told of."""
        wanted = expected(self.totals, spoilt, self.before, counts_parity=True)
        kept = copies(images, "kept")
        code = 3 if any(bad.what == "lost" for bad in spoilt) else 0
        with self.all_differences("read-only scrub") as differs:
            got, text = ashlar_scrub(images, "start", "-B", "--json", "-r")
            counters, problems = told(text)
            if not same(images, kept):
                differs("it wrote")
            differs(comparison(counters, wanted))
            differs(self.exactly(problems, spoilt))
            # What it could correct is still there.
            if got != (3 if spoilt else 0):
                differs(f"exit code {got}")
        with self.all_differences("scrub") as differs:
            got, text = ashlar_scrub(images, "start", "-B", "-R", "-d")
            differs(self.bytes_differ(images, kept, spoilt))
            differs(comparison(totals(text), wanted))
            if got != code:
                differs(f"exit code {got}")
        return problems

    @contextlib.contextmanager
    def all_differences(self, what):
        """Notes all that differs in what is done inside, where one thing does not keep another from being looked at."""
        found = []
        yield lambda text: found.append(text) if text else None
        if found:
            self.problems.append(f"{self.at}: {what}: " + "\n    ".join(found))

    def exactly(self, problems, spoilt):
        """Whether the problems are those of the list, no more and no less."""
        told_of = {(problem["devid"], problem["physical"]) for problem in problems}
        nodes = self.before.node_bytes
        wanted, perhaps = set(), set()
        for bad in spoilt:
            place = self.before.place(bad.logical) if bad.kind != "super" else None
            if bad.kind == "node":  # the tree block begins before the sector
                wanted |= {(c.device, c.physical) for c in place.copies if c.device == bad.device and 0 <= bad.physical - c.physical < nodes}
            elif bad.what == "lost" and bad.kind == "parity":
                perhaps.add(place.row)  # what can be said of it, as the row is lost?
            else:
                wanted.add((bad.device, bad.physical))
        missing = wanted - told_of
        more = [p for p in problems if (p["devid"], p["physical"]) not in wanted]
        more = [p for p in more if not (p["mirror"] is None and p["logical"] and self.before.place(p["logical"]).row in perhaps)]
        if missing or more:
            return f"{len(missing)} not told of: {sorted(missing)[:8]}; {len(more)} needlessly: {more[:3]}"
        return ""

    def bytes_differ(self, images, kept, spoilt):
        """Whether every sector is as before the damage where that can be, and what is lost was left as it is."""
        at = {(bad.device, bad.physical): bad for bad in spoilt}
        lost = {place for place, bad in at.items() if bad.what == "lost"}
        left, overwritten = [], []
        for device, image, spoilt_image in zip(self.before.files, images, kept):
            different = btrfs_damage.differences(self.before.paths[device], image)
            left += [str(at[device, offset]) for offset in different if (device, offset) in at.keys() - lost]
            overwritten += [f"{device}:{offset}" for offset in different if (device, offset) not in at]
            touched = btrfs_damage.differences(spoilt_image, image)
            overwritten += [f"{device}:{offset} (lost)" for offset in touched if (device, offset) in lost]
        if left or overwritten:
            return (
                f"{len(left)} spoilt sectors are not as before: {'; '.join(left[:5])}\n"
                f"    {len(overwritten)} good or lost sectors were overwritten: {' '.join(overwritten[:20])}"
            )
        return ""

    def kernel_is_content(self, images):
        """The kernel mounts it, reads every file, and finds nothing."""
        with mounted(images, "noatime,skip_balance"):
            files = btrfs_files.manifest(MOUNT)
            found = scrub()
        if any(counters[name] for counters in found.values() for name in ERRORS):
            raise Differs(f"the kernel's scrub finds errors after the repair: {found}")
        if files != self.manifest:
            raise Differs(f"the kernel finds other files than there were: {sorted(changed(files, self.manifest))[:9]}")
        # btrfs-progs 6.2 at times says of a sound RAID5 that what its parity gives is wrong: then the data are not checked.
        data = "nodatacheck" not in self.case.words
        if not checks(images, data) and not (data and not checks(copies(self.sound, "checked"), True) and checks(images, False)):
            raise Differs("btrfs check is not content")

    def kernel_repairs(self, images, spoilt):
        """Without ashlar: the kernel repairs, so that the suite is known to be right."""
        with mounted(images, "noatime,skip_balance"):
            scrub()
        for device, image in zip(self.before.files, images):
            different = set(btrfs_damage.differences(self.before.paths[device], image))
            left = [bad for bad in spoilt if bad.kind == "data" and bad.device == device and bad.physical in different]
            if left:
                raise Differs(f"not repaired by the kernel: {left}")

    def compare_paths(self, problems, unread):
        named = {name for problem in problems for name in problem["names"]}
        named = {name if name.startswith("/") else f"/{name}" for name in named}
        unread = {spaced(path) for path in unread}
        if named != unread:
            raise Differs(f"paths not named: {sorted(unread - named)[:5]}; needlessly named: {sorted(named - unread)[:5]}")

    def interrupted(self):
        """A scrub that is ended by a signal has made nothing worse, and goes on; one that is killed can be begun anew."""
        whole = copies(self.sound, "spoilt")
        spoilt = btrfs_damage.spoil(whole, f"{self.case.name} interrupted", data=60)
        wanted = expected(self.totals, spoilt, self.before, counts_parity=True)
        limit = max(counters["data_bytes_scrubbed"] + counters["tree_bytes_scrubbed"] for counters in wanted.values()) // 3
        for number, verb in ((signal.SIGTERM, "resume"), (signal.SIGKILL, "start")):
            images = copies(whole, "interrupted")
            command = [ASHLAR, "btrfs", "scrub", "start", "-B", "--limit", str(limit), "--status-dir", f"{WORK}/status"]
            running = subprocess.Popen([*command, *images], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1.2)
            running.send_signal(number)
            code = running.wait()
            with self.all_differences(f"scrub ended by {number.name}") as differs:
                if code == 0:
                    differs("it did not end, or it was done before: then the suite is wrong")
                differs(self.half_done(images, whole, spoilt))
                code, text = ashlar_scrub(images, verb, "-B", "-R", "-d")
                differs(self.bytes_differ(images, whole, spoilt))
                if verb == "resume":
                    differs(comparison(totals(text), wanted))
                if code != 0:
                    differs(f"exit code {code} of {verb}")
        code, _ = ashlar_scrub(images, "resume", "-B", codes=(0, 1, 2, 3))
        if code != 2:
            raise Differs(f"exit code {code} of scrub resume where nothing is to be resumed")

    def half_done(self, images, kept, spoilt):
        """Whether each sector is right, or as it was spoilt."""
        at = {(bad.device, bad.physical) for bad in spoilt}
        for device, image, spoilt_image in zip(self.before.files, images, kept):
            wrong = set(btrfs_damage.differences(self.before.paths[device], image))
            touched = set(btrfs_damage.differences(spoilt_image, image))
            bad = [offset for offset in wrong if (device, offset) not in at or offset in touched]
            if bad:
                return f"device {device}: neither as before the damage nor as after it: {bad[:9]}"
        return ""


def main():
    case = next((case for case in cases() if [case.name] == sys.argv[1:]), None)
    if case is None:
        sys.exit(__doc__)
    os.makedirs(MOUNT, exist_ok=True)
    try:
        judged = Judged(case)
    except Differs as difference:
        sys.exit(f"it could not be made: {difference}")
    judged.judge()
    if judged.problems:
        sys.exit("\n".join(judged.problems))


if __name__ == "__main__":
    main()
