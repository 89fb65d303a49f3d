#!/usr/bin/env python3
"""ublk beside the other ways to a block device of the same volume: a loop device on ashlar's mount, and the kernel's NBD client.

    benches/ublk.py [--seconds N] [--rounds N] [--json FILE]

Runs in a guest with Debian's 6.12 (tests/oracle/qemu-run), which has no KVM: its processors are emulated, so only ratios mean something. The
volume is a file of tmpfs, the client is fio with direct I/O by libaio. The table gives medians, and the median of the ratios within a round.
Works as root.
"""
import argparse, json, os, subprocess, sys, time
from statistics import median

from exports import ASHLAR, ROOT, record

SIZE_MIB = 256
JOBS = [('4k', 'randread', 1), ('4k', 'randread', 32), ('4k', 'randwrite', 1), ('4k', 'randwrite', 32), ('128k', 'read', 8), ('128k', 'write', 8)]


def run(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout.decode()


def until(what, done):
    end = time.monotonic() + 60
    while not done():
        if time.monotonic() > end:
            sys.exit(f'{what}: not there after 60 s')
        time.sleep(0.05)


def fio(device, seconds, job):
    block, pattern, depth = job
    out = run('fio', '--name=j', f'--filename={device}', '--direct=1', '--ioengine=libaio', f'--bs={block}', f'--rw={pattern}', f'--iodepth={depth}',
              '--time_based', '--norandommap', '--randrepeat=0', f'--runtime={seconds}', f'--size={SIZE_MIB}M', '--output-format=json')
    result = json.loads(out[out.index('{'):])['jobs'][0]
    return result['read' if 'read' in pattern else 'write']['iops']


def guest(ashlar, rounds, seconds):
    os.makedirs('/run/w/m')
    os.chdir('/run/w')
    for module in ('ublk_drv', 'loop', 'nbd'):
        run('modprobe', module)
    with open('disk.img', 'wb') as file:
        for _ in range(SIZE_MIB):
            file.write(os.urandom(1 << 20))

    def ublk():
        until('/dev/ublkb0', lambda: os.path.exists('/dev/ublkb0'))
        return '/dev/ublkb0', lambda: None

    def loop():
        until('the mount', lambda: os.path.exists('m/dev/disk.img'))
        device = run('losetup', '-f', '--show', '--direct-io=on', 'm/dev/disk.img').strip()
        return device, lambda: run('losetup', '-d', device)

    def nbd():
        until('the socket', lambda: os.path.exists('s'))
        run('nbd-client', '-unix', 's', '/dev/nbd0', '-N', 'disk.img', '-b', '4096')
        return '/dev/nbd0', lambda: run('nbd-client', '-d', '/dev/nbd0')

    ways = [('ublk', ['--ublk'], ublk), ('loop on the mount', ['--mount', 'm'], loop), ('nbd', ['--nbd', 'unix:s'], nbd)]
    for turn in range(rounds):
        for name, options, open_device in ways[turn % 3:] + ways[:turn % 3]:
            server = subprocess.Popen([ashlar, 'serve', 'disk.img', '--control', 'c', *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            device, close = open_device()
            for job in JOBS:
                print(json.dumps([name, job, fio(device, seconds, job)]), flush=True)
            close()
            time.sleep(0.5)
            server.terminate()
            server.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--json', help='append the results to this file')
    parser.add_argument('--guest', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.guest:
        return guest(args.guest, args.rounds, args.seconds)
    out = run(os.path.join(ROOT, 'tests/oracle/qemu-run'), '--timeout', '1800', '--smp', '2', '--mem', '2G', os.path.abspath(__file__), '--guest', ASHLAR,
              '--rounds', str(args.rounds), '--seconds', str(args.seconds))
    scores = {}
    for line in filter(lambda line: line.startswith('['), out.splitlines()):
        name, job, iops = json.loads(line)
        scores.setdefault(tuple(job), {}).setdefault(name, []).append(iops)
    rows = []
    print(f'a guest of QEMU without KVM, Linux 6.12, {args.rounds} rounds of {args.seconds} s')
    for job, by_name in scores.items():
        print(f'  {job[1]} {job[0]}, queue depth {job[2]}')
        for name, all in by_name.items():
            ratio = median(ours / theirs for ours, theirs in zip(by_name['ublk'], all, strict=True))
            print(f'    {name:20} {median(all):8.0f} IOPS   ublk is {ratio:5.2f} x')
            rows.append({'job': job, 'name': name, 'iops': median(all), 'least': min(all), 'most': max(all), 'ratio': ratio})
    record(args.json, rows)


if __name__ == '__main__':
    main()
