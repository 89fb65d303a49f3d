#!/usr/bin/env python3
"""Many volumes in one daemon: 1,000 linear volumes of an LVM group, 100 zvols of a pool.

    benches/many.py [--rounds N] [--seconds N] [--dir DIR] [lvm] [busy] [zvols]

lvm    how soon the daemon is ready, what it takes, `ashlar get`, `nbdinfo --list`, `ashlar lvm lvcreate` on the served group
busy   16 volumes of the 1,000 under random 4 KiB reads and writes, beside 16 of a group of 16 (ratios within a round)
zvols  how soon 100 zvols of one pool are ready, and what they take (needs libzpool)

Needs nbd-load (benches/src/bin/nbd-load.rs) and nbdinfo. The images are sparse files in DIR [default: /dev/shm].
"""
import argparse, os, platform, re, shutil, signal, subprocess, sys, tempfile, time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ASHLAR = os.environ.get('ASHLAR', os.path.join(ROOT, 'target/release/ashlar'))
LOAD = os.environ.get('LOAD', os.path.join(ROOT, 'target/release/nbd-load'))
EXTENTS = 4  # of each volume, 4 MiB each
BUSY = 16


def ashlar(*words, **keys):
    return subprocess.run([ASHLAR, *words], check=True, stdout=subprocess.PIPE, text=True, **keys).stdout


def took_ms(work):
    begin = time.monotonic()
    work()
    return (time.monotonic() - begin) * 1000


class Daemon:
    """`ashlar serve` of disks; `ready_s` is the time from its start to its `ready`."""

    def __init__(self, work, *disks):
        self.socket, self.control = os.path.join(work, 'nbd'), os.path.join(work, 'control')
        begin = time.monotonic()
        self.process = subprocess.Popen([ASHLAR, 'serve', *disks, '--nbd', f'unix:{self.socket}', '--control', self.control],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.strip().endswith('ready'):
                break
        else:
            sys.exit(f'serve {disks[0]} ended with {self.process.wait()}')
        self.ready_s = time.monotonic() - begin

    def takes(self):
        """Resident MiB, threads and descriptors of the daemon and of its pools' processes."""
        pids = [self.process.pid]
        for pid in pids:
            with open(f'/proc/{pid}/task/{pid}/children') as children:
                pids += [int(child) for child in children.read().split()]
        memory, threads, descriptors = 0, 0, 0
        for pid in pids:
            with open(f'/proc/{pid}/status') as status:
                text = status.read()
            memory += int(re.search(r'VmRSS:\s+(\d+)', text)[1])
            threads += int(re.search(r'Threads:\s+(\d+)', text)[1])
            descriptors += len(os.listdir(f'/proc/{pid}/fd'))
        return f'{memory >> 10} MiB, {threads} threads, {descriptors} descriptors, {len(pids)} processes'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


def group(work, count):
    """An image with a group `vg` of `count` linear volumes, v0 and on."""
    image, text = os.path.join(work, f'{count}.img'), os.path.join(work, f'{count}.vg')
    with open(image, 'wb') as file:
        file.truncate((count * EXTENTS + 1024) * (4 << 20))
    # The description is larger than the default area of 1 MiB with 1,000 volumes and several states.
    ashlar('lvm', 'pvcreate', '-q', '--metadatasize', '16M', image)
    ashlar('lvm', 'vgcreate', '--devices', image, 'vg', image)
    ashlar('lvm', 'lvcreate', '--devices', image, '-l', '1', '-n', 'pattern', 'vg')
    ashlar('lvm', 'vgcfgbackup', '--devices', image, '-f', text, 'vg')
    with open(text) as file:
        lines = file.read()
    volumes, after = re.search(r'\tlogical_volumes \{\n(.*?\n\t\t\}\n)\t\}\n(.*)', lines, re.S).groups()
    many = []
    for number in range(count):
        volume = volumes.replace('pattern {', f'v{number} {{')
        volume = re.sub(r'id = "(.*?)"', lambda id: f'id = "{id[1][:-5]}{number:05}"', volume, count=1)
        volume = volume.replace('extent_count = 1\n', f'extent_count = {EXTENTS}\n')
        many.append(re.sub(r'("pv0", )0', rf'\g<1>{number * EXTENTS}', volume))
    with open(text, 'w') as file:
        file.write(lines.replace(volumes, '\n'.join(many)))
    ashlar('lvm', 'vgcfgrestore', '--devices', image, '-f', text, 'vg')
    return image


def lvm(args, work):
    image = group(work, 1000)
    ready, get, listed, created = [], [], [], []
    for turn in range(args.rounds):
        with Daemon(work, image) as daemon:
            ready.append(daemon.ready_s)
            control = ('--control', daemon.control)
            for number in range(20):
                path = f'sys/block/dm-{number * 50}/size'
                get.append(took_ms(lambda: ashlar('get', *control, path)))
            listed.append(took_ms(lambda: exports(daemon, 1000)))
            for number in range(10):
                words = ['lvm', 'lvcreate', *control, '-q', '-l', '1', '-n', f'new{turn}-{number}', 'vg']
                created.append(took_ms(lambda: ashlar(*words)))
            takes = daemon.takes()
            for number in range(10):
                ashlar('lvm', 'lvremove', *control, '-q', '-y', f'vg/new{turn}-{number}')
    print('1,000 linear volumes of one group, medians')
    print(f'  ready {median(ready):.2f} s; {takes}')
    print(f'  ashlar get of one attribute, with its process: {median(get):.1f} ms')
    print(f'  nbdinfo --list, all shown: {median(listed):.0f} ms')
    print(f'  live lvcreate, with its process: {median(created):.1f} ms (most: {max(created):.1f})')


def exports(daemon, least):
    out = subprocess.run(['nbdinfo', '--list', '--no-content', f'nbd+unix:///?socket={daemon.socket}'], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    shown = out.count('export="')
    if shown < least:
        sys.exit(f'nbdinfo --list shows {shown} exports, not {least}')


def load(daemon, volumes, pattern, seconds):
    """Requests a second of one client for each of the volumes, together."""
    clients = [subprocess.Popen([LOAD, daemon.socket, f'vg/{volume}', pattern, '4096', '4', str(seconds)],
                                stdout=subprocess.PIPE, text=True) for volume in volumes]
    outs = [client.communicate()[0] for client in clients]
    if any(client.returncode for client in clients):
        sys.exit('a client failed')
    return sum(float(out) for out in outs)


def busy(args, work):
    images = {count: group(work, count) for count in (BUSY, 1000)}
    chosen = {BUSY: [f'v{n}' for n in range(BUSY)], 1000: [f'v{n * 60 + 7}' for n in range(BUSY)]}
    patterns = ['randread', 'randwrite']
    rates = {(count, pattern): [] for count in images for pattern in patterns}
    for turn in range(args.rounds):
        for count in sorted(images, reverse=turn % 2 == 1):
            with Daemon(work, images[count]) as daemon:
                load(daemon, chosen[count], 'write', 1)
                for pattern in patterns:
                    rates[count, pattern].append(load(daemon, chosen[count], pattern, args.seconds))
    print(f'{BUSY} busy volumes, 4 KiB, queue depth 4 each, all together')
    for pattern in patterns:
        alone, among = rates[BUSY, pattern], rates[1000, pattern]
        ratios = sorted(a / b for a, b in zip(among, alone))
        print(f'  {pattern}: alone {median(alone):.0f} IOPS, among 1,000 {median(among):.0f} IOPS: {median(ratios):.3f} x '
              f'({ratios[0]:.3f} to {ratios[-1]:.3f})')


def zvols(args, work):
    image = os.path.join(work, 'pool.img')
    with open(image, 'wb') as file:
        file.truncate(4 << 30)
    ashlar('zpool', 'create', '-q', 'tank', image)
    with Daemon(work, image) as daemon:
        for number in range(100):
            ashlar('zvol', 'create', '--control', daemon.control, '-q', '-s', '-V', '64M', f'tank/v{number}')
    ready = []
    for _ in range(args.rounds):
        with Daemon(work, image) as daemon:
            ready.append(daemon.ready_s)
            exports(daemon, 100)
            takes = daemon.takes()
    print('100 zvols of one pool')
    print(f'  ready {median(ready):.2f} s; {takes}')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=int, default=3)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--dir', default='/dev/shm')
    parser.add_argument('tables', nargs='*', default=[])
    args = parser.parse_args()
    tables = {'lvm': lvm, 'busy': busy, 'zvols': zvols}
    os.environ['XDG_STATE_HOME'] = work = tempfile.mkdtemp(prefix='ashlar-many.', dir=args.dir)
    print(f'{platform.release()}, {os.cpu_count()} CPUs, {args.rounds} rounds')
    try:
        for name in args.tables or tables:
            tables[name](args, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == '__main__':
    main()
