#!/usr/bin/env python3
"""vhost-user-blk side by side: ashlar's device against qemu-storage-daemon's.

    benches/vhost.py [--seconds N] [--rounds N] [--dir DIR] [--json FILE] [ram] [file]

As benches/exports.py, with libblkio's driver as the client (benches/src/bin/vhost-load.rs), which polls its ring and so takes a
processor: the server runs on the first processor, the client on the second. In RAM qemu-storage-daemon has two disks, of which none is
a RAM disk: null-co, which fills what is read with zeroes and drops what is written, and a file of tmpfs. Its export has an I/O thread,
which polls. Needs qemu-storage-daemon and two processors.
"""
import argparse, os, platform, shutil, subprocess, sys, tempfile

import exports
from exports import ASHLAR, ROOT, SIZE, Server, record, run

LOAD = os.environ.get('VHOST_LOAD', os.path.join(ROOT, 'target/release/vhost-load'))
JOBS = [(block, pattern, depth) for pattern in ('randread', 'randwrite') for block, depth in (('4k', 1), ('4k', 32), ('4k', 128))]
JOBS += [('128k', 'read', 8), ('128k', 'write', 8)]


class Abrupt(Server):
    """qemu-storage-daemon 7.2 does not always end when it is asked to. Nobody needs its disks."""

    def stop(self):
        self.process.kill()
        self.process.wait(timeout=30)


def load(path, seconds, job):
    block, pattern, depth = job
    argv = ['taskset', '--cpu-list', '1', LOAD, path, '--rw', pattern, '--bs', str(int(block[:-1]) << 10), '--depth', str(depth)]
    client = subprocess.run([*argv, '--seconds', str(seconds)], stdout=subprocess.PIPE)
    if client.returncode:
        sys.exit(f'vhost-load: {client.returncode}')
    return float(client.stdout)


def measure(path, seconds, job):
    if job == JOBS[0]:
        # Everything is written once, so that no memory has to be found while it is measured. Each run begins at the same place.
        fill = 2
        while load(path, fill, ('128k', 'write', 8)) * fill * (128 << 10) < SIZE:
            fill *= 2
    return load(path, seconds, job)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=float, default=2)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--dir', default=tempfile.gettempdir())
    parser.add_argument('--json', help='append the results to this file')
    parser.add_argument('--spin', type=int, help='as of ashlar serve')
    parser.add_argument('tables', nargs='*', default=[])
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix='ashlar-bench.', dir=args.dir)
    shared = tempfile.mkdtemp(prefix='ashlar-bench.', dir='/dev/shm')
    sock, control, image = (os.path.join(work, name) for name in ('s', 'c', 'disk.img'))
    in_memory = os.path.join(shared, 'disk.img')

    def fresh(argv, kind=Server):
        if os.path.exists(sock):
            os.unlink(sock)
        return kind(argv[0], ['taskset', '--cpu-list', '0', *argv], lambda: os.path.exists(sock)), sock

    def ashlar(disk):
        spin = [] if args.spin is None else ['--spin', str(args.spin)]
        return lambda: fresh([ASHLAR, 'serve', disk, '--vhost-user', f'unix:{sock}', '--threads', '1', '--control', control, *spin])

    def qsd(disk):
        return lambda: fresh(['qemu-storage-daemon', '--object', 'iothread,id=t', '--blockdev', f'{disk},node-name=f',
                              '--export', 'type=vhost-user-blk,id=e,node-name=f,iothread=t,writable=on,addr.type=unix,'
                              f'addr.path={sock}'], Abrupt)

    rows = []
    each = lambda path, job: measure(path, args.seconds, job)
    try:
        print(f'{platform.release()}, {os.cpu_count()} CPUs, {args.rounds} rounds of {args.seconds} s')
        if 'ram' in (args.tables or ['ram']):
            with open(in_memory, 'wb') as file:
                file.truncate(SIZE)
            rows += run('vhost-user, RAM', {
                'ashlar': ashlar(f'ram:{SIZE >> 20}M'),
                'qemu-storage-daemon null-co': qsd(f'driver=null-co,size={SIZE},read-zeroes=on'),
                'qemu-storage-daemon tmpfs': qsd(f'driver=file,filename={in_memory}'),
            }, JOBS, args.rounds, each)
            os.unlink(in_memory)
        if 'file' in (args.tables or ['file']):
            exports.write_image(image)
            rows += run('vhost-user, file with direct I/O', {
                'ashlar': ashlar(image),
                'qemu-storage-daemon': qsd(f'driver=file,filename={image},aio=io_uring,cache.direct=on,discard=unmap'),
            }, JOBS, args.rounds, each)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)
    record(args.json, rows)


if __name__ == '__main__':
    main()
