#!/usr/bin/python3
"""btrfs_make.py - the file systems of the btrfs suite: made by mkfs.btrfs, filled and changed through the kernel.

Everything is in the directory that WORK names. MOUNT in it is where file systems are mounted.
"""

import contextlib
import os
import random
import shutil
import subprocess

import btrfs_files
import btrfs_group_tree
from btrfs_tree import FileSystem

WORK = os.environ["WORK"]
MOUNT = f"{WORK}/mount"


class Differs(Exception):
    """What is not as it has to be."""


def run(*command, codes=(0,)):
    """Runs a command and returns what it printed, errors too."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    text = done.stdout.decode(errors="surrogateescape")
    if done.returncode not in codes:
        raise Differs(f"{' '.join(command[:6])}... ended with {done.returncode}:\n{text[-3000:]}")
    return text


@contextlib.contextmanager
def attached(images):
    """The images as loop devices, known to the kernel's btrfs, and forgotten afterwards."""
    loops = []
    try:
        for image in images:
            loops.append(run("losetup", "--find", "--show", image).strip())
        yield loops
    finally:
        # Devices of the same file system must not be taken for others later.
        subprocess.run(["btrfs", "device", "scan", "--forget", *loops], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for loop in loops:
            run("losetup", "--detach", loop)


@contextlib.contextmanager
def mounted(images, options):
    """The file system on the images, mounted at MOUNT; yields the loop devices."""
    with attached(images) as loops:
        run("btrfs", "device", "scan", *loops)
        run("mount", "-o", options, loops[0], MOUNT)
        try:
            yield loops
        finally:
            run("umount", MOUNT)


def copies(images, name):
    """Copies of images under another name, holes kept."""
    made = []
    for image in images:
        made.append(f"{WORK}/{name}.{os.path.basename(image).split('.')[-2]}.img")
        run("cp", "--sparse=always", image, made[-1])
    return made


def fio(case, directory, jobs, compressible):
    """The job of the seed, smaller, and every 16th file removed."""
    os.makedirs(directory, exist_ok=True)
    files = os.environ.get("FILES") or next(word[6:] for word in case.words if word.startswith("files="))
    run(
        "fio", "--name=scrub-populate", f"--directory={directory}", f"--nrfiles={files}", "--openfiles=16",
        "--filesize=2k-512k", "--readwrite=randwrite", "--ioengine=libaio", "--fallocate=none", f"--numjobs={jobs}",
        *(["--buffer_compress_percentage=50", "--refill_buffers"] if compressible else []),
        "--thread", "--output-format=terse",
    )  # fmt: skip
    names = sorted(os.listdir(directory))
    for name in random.Random(case.name).sample(names, len(names) // 16):
        os.unlink(f"{directory}/{name}")


def balance(word):
    """Half a balance: a block group of each kind only."""
    data, metadata = word.split(",")
    filters = [f"-dconvert={data},limit=1"] if data != "-" else []
    filters += [f"-mconvert={metadata},limit=1"] if metadata != "-" else []
    run("btrfs", "balance", "start", "--force", *filters, MOUNT)


def pause():
    """A balance that is paused in the middle."""
    for _ in range(20):
        running = subprocess.Popen(
            ["btrfs", "balance", "start", "--full-balance", MOUNT], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        paused = False
        while running.poll() is None and not paused:
            paused = subprocess.run(["btrfs", "balance", "pause", MOUNT], stderr=subprocess.DEVNULL).returncode == 0
        running.wait()
        if "paused" in run("btrfs", "balance", "status", MOUNT, codes=(0, 1)):
            return
    raise Differs("no balance could be paused: the suite is wrong")


def make(case):
    """Makes the file system; returns its images and the manifest of its files."""
    images = []
    for number, size in enumerate(case.sizes):
        images.append(f"{WORK}/sound.{number}.img")
        with open(images[-1], "wb") as file:
            file.truncate(int(os.environ.get("MIB") or size) << 20)
    words = dict(word.partition("=")[::2] for word in case.words)
    options = "noatime,commit=3000"
    options += f",compress-force={words['compress']}" if "compress" in words else ""
    options += ",space_cache=v1" if "v1" in words else ""
    first = images[:-1] if "add" in words else images
    if "moving" in words:
        return moving(case, images[0])
    with attached(first) as loops:
        run("mkfs.btrfs", "--quiet", *case.mkfs, *loops)
    if "groups" in words:
        btrfs_group_tree.convert(first)
    with attached(images) as loops:
        run("btrfs", "device", "scan", *loops[: len(first)])
        run("mount", "-o", options, loops[0], MOUNT)
        try:
            fio(case, f"{MOUNT}/fio", 4, "compress" in words)
            btrfs_files.fill(MOUNT, case.name, False)
            if "whole" in words:
                run("btrfs", "subvolume", "snapshot", MOUNT, f"{MOUNT}/whole")
                fio(case, f"{MOUNT}/fio", 1, "compress" in words)
                fio(case, f"{MOUNT}/whole/fio", 1, "compress" in words)
            if "convert" in words:
                balance(words["convert"])
                btrfs_files.write(f"{MOUNT}/balanced", btrfs_files.dense(case.name, "balanced", 3 << 20))
            if "add" in words:
                run("btrfs", "device", "add", loops[-1], MOUNT)
                run("btrfs", "balance", "start", "--force", "-dlimit=1", "-mlimit=1", MOUNT)
            if "remove" in words:
                run("btrfs", "device", "remove", loops[1], MOUNT)
            run("btrfs", "filesystem", "sync", MOUNT)
            if "paused" in words:
                pause()
            if "log" in words:
                logged(case)
            manifest = btrfs_files.manifest(MOUNT)
            if "log" in words:
                copied = copies(images, "copied")
        finally:
            run("umount", MOUNT)
    if "log" in words:
        for image, copy in zip(images, copied):
            os.replace(copy, image)
    if "remove" in words:
        os.unlink(images.pop(1))
    return images, manifest


def moving(case, image):
    """A crash in the middle of a relocation. The image is on a file system that can copy it at an instant."""
    outer = f"{WORK}/outer"
    os.makedirs(outer, exist_ok=True)
    with open(f"{outer}.img", "wb") as file:
        file.truncate(4 << 30)
    with attached([f"{outer}.img"]) as [below]:
        run("mkfs.btrfs", "--quiet", below)
        run("mount", below, outer)
        try:
            inner = f"{outer}/image"
            shutil.copyfile(image, inner)
            with attached([inner]) as loops:
                run("mkfs.btrfs", "--quiet", *case.mkfs, *loops)
            with mounted([inner], "noatime"):
                fio(case, f"{MOUNT}/fio", 4, False)
                btrfs_files.fill(MOUNT, case.name, False)
                run("btrfs", "filesystem", "sync", MOUNT)
                manifest = btrfs_files.manifest(MOUNT)
                caught = catch(inner)
            run("cp", "--sparse=always", caught, image)
        finally:
            run("umount", outer)
    return [image], manifest


def catch(image):
    """A copy of the image from an instant at which there is a relocation tree."""
    for _ in range(10):
        balance = subprocess.Popen(
            ["btrfs", "balance", "start", "--full-balance", MOUNT], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        taken = []
        while balance.poll() is None and len(taken) < 200:
            taken.append(f"{image}.{len(taken)}")
            run("cp", "--reflink=always", image, taken[-1])
        balance.wait()
        for copy in taken:
            if any(str(tree).startswith("reloc") for tree in FileSystem([copy]).roots):
                return copy
    raise Differs("no relocation could be caught: the suite is wrong")


def logged(case):
    """Files, names and changes that are in the log tree only."""
    for number in range(8):
        btrfs_files.write(f"{MOUNT}/logged-{number}", btrfs_files.dense(case.name, str(number), 3000 + number * 9000))
        btrfs_files.sync(f"{MOUNT}/logged-{number}")
    victim = sorted(os.listdir(f"{MOUNT}/fio"))[3]
    btrfs_files.write(f"{MOUNT}/fio/{victim}", b"changed" * 1000, 4096)
    btrfs_files.sync(f"{MOUNT}/fio/{victim}")
