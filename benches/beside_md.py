#!/usr/bin/env python3
"""The kernel's md beside ashlar, on the same RAM disks of the same guest: random writes of 4 KiB to a RAID5, both at their defaults.

    benches/beside_md.py [--seconds N] [--rounds N] [--members N] [--mib N] [--cpu MODEL] [--smp N] [--json FILE]

The guest is that of tests/oracle/qemu-run: a processor that QEMU emulates, so that rates are low and only ratios count. mdadm makes the array.
The kernel's is a block device, which fio writes by libaio with direct I/O; ashlar's is an export, which fio writes over a Unix socket. In each
round both have the array in turn, and the one that begins changes from round to round. The table gives medians, the median of the ratios within
a round and their range, and the time of the processor for a write: of all that runs in the guest, fio too.

ASHLAR is the program, default target/dist/ashlar. Needs root, and what tests/oracle/README.md says; it runs itself in the guest.
"""
import argparse, json, os, re, signal, subprocess, sys, tempfile, time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ASHLAR = os.environ.get('ASHLAR', os.path.join(ROOT, 'target/dist/ashlar'))
TITLE = 'Random writes of 4 KiB beside md, RAID5 in a guest'
# What one array or one start may take in the guest.
PATIENCE = 300


def run(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f'{" ".join(argv)}: {done.returncode}: {done.stdout.decode()}')
    return done.stdout.decode()


def wait_until(what, done):
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            sys.exit(f'{what}: not within {PATIENCE} s')
        time.sleep(0.1)


def ticks():
    """The time in which processors were busy and in which they could have been, in ticks of a clock."""
    with open('/proc/stat') as file:
        user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    busy = user + nice + system + irq + softirq
    return busy, busy + idle + iowait + steal


class Kernel:
    name = 'the kernel'

    def __init__(self, disks, _):
        self.disks = disks

    def start(self):
        run('mdadm', '--quiet', '--assemble', '/dev/md0', *self.disks)
        return ['--ioengine=libaio', '--direct=1', '--filename=/dev/md0']

    def stop(self):
        run('mdadm', '--quiet', '--stop', '/dev/md0')


class Ashlar:
    name = 'ashlar'

    def __init__(self, disks, program):
        self.disks, self.program = disks, program
        self.work = tempfile.mkdtemp()
        self.socket, self.log = os.path.join(self.work, 's'), os.path.join(self.work, 'log')

    def start(self):
        with open(self.log, 'w') as log:
            self.process = subprocess.Popen(
                [self.program, 'serve', *self.disks, '--nbd', f'unix:{self.socket}', '--control', os.path.join(self.work, 'c')],
                stdout=log, stderr=log)
        ready = lambda: self.process.poll() is not None or re.search(r'\bready\b', self.said())
        wait_until('ashlar serve', ready)
        if self.process.poll() is not None:
            sys.exit(f'ashlar serve: {self.process.returncode}: {self.said()}')
        return ['--ioengine=nbd', f'--uri=nbd+unix:///md0?socket={self.socket}']

    def said(self):
        with open(self.log) as log:
            return log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(timeout=PATIENCE):
            sys.exit(f'ashlar serve: {self.process.returncode}: {self.said()}')


def fio(where, seconds, size):
    """Writes per second, and the microseconds of processors for each."""
    argv = ['fio', '--name=j', '--bs=4k', '--rw=randwrite', '--iodepth=32', '--time_based', '--norandommap', '--randrepeat=0', '--ramp_time=2',
            f'--runtime={seconds}', f'--size={size}', '--output-format=json', *where]
    before = ticks()
    out = run(*argv)
    after = ticks()
    write = json.loads(out[out.index('{'):])['jobs'][0]['write']
    busy, all_of_it = (now - then for now, then in zip(after, before, strict=True))
    share = busy / all_of_it * os.cpu_count()
    return write['iops'], share * 1e6 / write['iops']


def in_guest(args):
    """What runs in the guest: a line of JSON for each measurement."""
    run('modprobe', 'brd', f'rd_nr={args.members}', f'rd_size={args.mib << 10}')
    run('modprobe', 'raid456')
    disks = [f'/dev/ram{number}' for number in range(args.members)]
    run('mdadm', '--create', '/dev/md0', '--run', '--level=5', f'--raid-devices={args.members}', *disks)
    synced = lambda: re.search(r'\[U+\]', open('/proc/mdstat').read())
    wait_until('the first sync', synced)
    size = int(run('blockdev', '--getsize64', '/dev/md0'))
    # So that no memory has to be found while it is measured.
    run('dd', 'if=/dev/zero', 'of=/dev/md0', 'bs=1M', f'count={size >> 20}', 'oflag=direct')
    run('mdadm', '--quiet', '--stop', '/dev/md0')
    sides = [Kernel(disks, args.program), Ashlar(disks, args.program)]
    for turn in range(args.rounds):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            where = side.start()
            rate, cost = fio(where, args.seconds, size)
            side.stop()
            print(json.dumps({'round': turn, 'name': side.name, 'iops': rate, 'us': cost}), flush=True)
    # What both have written fits together.
    run('mdadm', '--quiet', '--assemble', '/dev/md0', *disks)
    with open('/sys/block/md0/md/sync_action', 'w') as action:
        action.write('check')
    wait_until('the check', lambda: open('/sys/block/md0/md/sync_action').read() == 'idle\n')
    mismatches = int(open('/sys/block/md0/md/mismatch_cnt').read())
    if mismatches:
        sys.exit(f'the parity of {mismatches} sectors is wrong')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=int, default=10)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--members', type=int, default=4)
    parser.add_argument('--mib', type=int, default=128)
    parser.add_argument('--cpu', default='max,cx16=off')
    parser.add_argument('--smp', type=int, default=1)
    parser.add_argument('--json', help='append the results to this file')
    parser.add_argument('--in-guest', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument('--program', default=os.path.realpath(ASHLAR), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_guest:
        return in_guest(args)
    if os.geteuid() != 0:
        sys.exit('beside_md: the guest needs root')
    memory = args.members * args.mib + 1024
    argv = [os.path.join(ROOT, 'tests/oracle/qemu-run'), '--mem', f'{memory}M', '--smp', str(args.smp), '--cpu', args.cpu, '--timeout',
            str(2 * PATIENCE + args.rounds * 2 * (args.seconds + 60)), os.path.abspath(__file__), '--in-guest',
            '--program', args.program, '--seconds', str(args.seconds), '--rounds', str(args.rounds), '--members', str(args.members),
            '--mib', str(args.mib)]
    guest = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    scores = {side.name: [] for side in (Ashlar, Kernel)}
    for line in guest.stdout:
        if not line.startswith('{'):
            print(line, end='', file=sys.stderr)
            continue
        score = json.loads(line)
        scores[score['name']].append(score)
        print(f'  {score["name"]:12} {score["iops"]:10.0f} IOPS {score["us"]:10.1f} us of processors', flush=True)
    if guest.wait():
        sys.exit(f'beside_md: the guest ended with {guest.returncode}')
    ratios = [ours['iops'] / theirs['iops'] for ours, theirs in zip(*scores.values(), strict=True)]
    print(f'{TITLE}, medians of {args.rounds} rounds')
    for name, rounds in scores.items():
        rates, costs = ([score[key] for score in rounds] for key in ('iops', 'us'))
        row = {'title': TITLE, 'name': name, 'iops': median(rates), 'least': min(rates), 'most': max(rates), 'us': median(costs)}
        print(f'  {name:12} {row["iops"]:10.0f} IOPS {row["us"]:10.1f} us of processors')
        if name == Ashlar.name:
            row |= {'ratio': median(ratios), 'ratios': ratios}
            print(f'               {median(ratios):.2f} x the kernel ({min(ratios):.2f} to {max(ratios):.2f})')
        if args.json:
            with open(args.json, 'a') as file:
                file.write(json.dumps(row) + '\n')


if __name__ == '__main__':
    main()
