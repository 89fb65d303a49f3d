#!/usr/bin/env python3
"""Exports side by side: ashlar's NBD server and FUSE tree against what a user would run instead.

    benches/exports.py [--seconds N] [--rounds N] [--dir DIR] [nbd-ram] [nbd-load] [nbd-file] [nbd-threads] [nbd-tls] [connections] [fuse]

Every round runs every contender on the same data, one after the other, in an order that turns from
round to round. The tables give medians, and the median of the ratios within a round: absolute figures
drift on a shared machine, ratios do not. nbd-load is nbd-ram with a client that costs little (benches/src/bin/nbd-load.rs):
fio's own cost hides a part of the difference between fast servers. nbd-threads is nbd-file without io_uring. nbd-tls is nbd-ram over TLS with certificates:
libnbd, fio's client, has TLS by GnuTLS. connections has 1, 2, 4 and 8 of them at once, each at the
whole queue depth, in RAM (lean clients, one process each) and on a file (fio, one process each). Needs fio, nbdkit, qemu-storage-daemon, nbdfuse; fuse needs root.
"""
import argparse, json, os, platform, shutil, signal, subprocess, sys, tempfile, time
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ASHLAR = os.environ.get('ASHLAR', os.path.join(ROOT, 'target/release/ashlar'))
LOAD = os.environ.get('LOAD', os.path.join(ROOT, 'target/release/nbd-load'))
SIZE = 1 << 30


def wait_for(what, done, process, seconds=20):
    end = time.monotonic() + seconds
    while not done():
        if process.poll() is not None:
            sys.exit(f'{what}: ended with {process.returncode}')
        if time.monotonic() > end:
            process.kill()
            sys.exit(f'{what}: not ready after {seconds} s')
        time.sleep(0.02)


class Server:
    """A process, and what ends it."""

    def __init__(self, name, argv, ready, stop=None):
        self.name, self.stop_argv = name, stop
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        wait_for(name, ready, self.process)

    def stop(self):
        if self.stop_argv:
            subprocess.run(self.stop_argv, check=True)
        else:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def fio(args, seconds, job):
    bs, rw, depth, *connections = job
    out = subprocess.run(
        ['fio', '--name=j', f'--bs={bs}', f'--rw={rw}', f'--iodepth={depth}', '--time_based', '--norandommap',
         f'--numjobs={connections[0] if connections else 1}', '--group_reporting', '--randrepeat=0', f'--runtime={seconds}', '--output-format=json', f'--size={SIZE}', *args],
        stdout=subprocess.PIPE, check=True).stdout.decode()
    result = json.loads(out[out.index('{'):])['jobs'][0]
    return result['read' if 'read' in rw else 'write']['iops']


NBD_JOBS = [('4k', 'randread', 32), ('4k', 'randwrite', 32), ('128k', 'read', 8), ('128k', 'write', 8)]
CONNECTION_JOBS = [(*job, connections) for job in NBD_JOBS for connections in (1, 2, 4, 8)]


def write_image(path):
    """A disk whose blocks all exist."""
    with open(path, 'wb') as f:
        for _ in range(SIZE >> 20):
            f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())


def fill(path, name):
    """Writes everything once, so that no memory has to be found while it is measured."""
    subprocess.run(['fio', '--name=fill', '--ioengine=nbd', f'--uri=nbd+unix:///{name}?socket={path}', '--bs=1m',
                    '--rw=write', '--iodepth=4', f'--size={SIZE}'], stdout=subprocess.DEVNULL, check=True)


def nbd_job(path, name, seconds, job):
    if job in (NBD_JOBS[0], CONNECTION_JOBS[0]):
        fill(path, name)
    return fio(['--ioengine=nbd', f'--uri=nbd+unix:///{name}?socket={path}'], seconds, job)


def certificates(path):
    """A directory with a CA, and a server's certificate."""
    os.mkdir(path)
    new = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-noenc']
    with open(os.path.join(path, 'server.ext'), 'w') as file:
        file.write('subjectAltName=DNS:localhost\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n')
    for argv in (['req', '-x509', *new, '-subj', '/CN=CA', '-addext', 'keyUsage=critical,keyCertSign', '-keyout', 'ca-key.pem', '-out', 'ca-cert.pem'],
                 ['req', '-new', *new, '-subj', '/CN=localhost', '-keyout', 'server-key.pem', '-out', 'server.csr'],
                 ['x509', '-req', '-in', 'server.csr', '-CA', 'ca-cert.pem', '-CAkey', 'ca-key.pem', '-extfile', 'server.ext', '-out', 'server-cert.pem']):
        subprocess.run(['openssl', *argv], cwd=path, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tls_job(path, pki, seconds, job):
    client = ['--ioengine=nbd', f'--uri=nbds+unix:///?socket={path}&tls-verify-peer=false']
    if job == NBD_JOBS[0]:
        fio(client, 2, ('1m', 'write', 4))
    return fio(client, seconds, job)


def load_job(path, name, seconds, job):
    if job in (NBD_JOBS[0], CONNECTION_JOBS[0]):
        fill(path, name)
    block, pattern, depth, *connections = job
    argv = [LOAD, path, name, pattern, str(int(block[:-1]) << 10), str(depth), str(seconds)]
    clients = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(connections[0] if connections else 1)]
    rates = [float(client.communicate()[0]) for client in clients]
    if any(client.returncode for client in clients):
        sys.exit(f'nbd-load: {[client.returncode for client in clients]}')
    return sum(rates)


def run(title, contenders, jobs, rounds, measure):
    """contenders: name -> function that starts a server and gives (server, how to address it)."""
    scores = {job: {name: [] for name in contenders} for job in jobs}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            server, address = contenders[name]()
            try:
                for job in jobs:
                    scores[job][name].append(measure(address, job))
            finally:
                server.stop()
    print(f'{title}')
    rows = []
    for job in jobs:
        ours = scores[job]['ashlar']
        print(f'  {job[1]} {job[0]}, queue depth {job[2]}' + (f', {job[3]} connections' if len(job) > 3 else ''))
        for name in names:
            theirs = scores[job][name]
            ratio = median(a / b for a, b in zip(ours, theirs))
            print(f'    {name:24} {median(theirs):10.0f} IOPS   ashlar is {ratio:5.2f} x')
            rows.append({'title': title, 'job': job, 'name': name, 'iops': median(theirs), 'least': min(theirs),
                         'most': max(theirs), 'ratio': ratio})
    return rows


def record(path, rows):
    """Appends rows to a file, if there is one."""
    if path:
        with open(path, 'a') as file:
            for row in rows:
                file.write(json.dumps(row) + '\n')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--dir', default=tempfile.gettempdir())
    parser.add_argument('--json', help='append the results to this file')
    parser.add_argument('tables', nargs='*', default=[])
    args = parser.parse_args()
    tables = args.tables or ['nbd-ram', 'nbd-load', 'nbd-file', 'nbd-threads', 'nbd-tls', 'connections', 'fuse']
    work = tempfile.mkdtemp(prefix='ashlar-bench.', dir=args.dir)
    sock, control = os.path.join(work, 's'), os.path.join(work, 'c')
    image = os.path.join(work, 'disk.img')
    rows = []

    def fresh(argv, name='', stop=None):
        if os.path.exists(sock):
            os.unlink(sock)
        return Server(argv[0], argv, lambda: os.path.exists(sock), stop), name

    def ashlar(disk, name, *options):
        return lambda: fresh([ASHLAR, 'serve', disk, '--nbd', f'unix:{sock}', '--control', control, *options], name)

    def qsd(aio):
        # Without an I/O thread for the export: version 7.2 ends by an assertion when a client of such an export leaves.
        return lambda: fresh(['qemu-storage-daemon', '--blockdev',
                              f'driver=file,filename={image},node-name=f,aio={aio},cache.direct=on,discard=unmap',
                              '--nbd-server', f'addr.type=unix,addr.path={sock}',
                              '--export', 'type=nbd,id=e,node-name=f,name=,writable=on'])

    try:
        print(f'{platform.release()}, {os.cpu_count()} CPUs, {args.rounds} rounds of {args.seconds} s')
        if {'nbd-file', 'nbd-threads', 'connections', 'fuse'} & set(tables):
            write_image(image)
        for table, title, measure in [('nbd-ram', 'NBD, RAM', nbd_job), ('nbd-load', 'NBD, RAM, lean client', load_job)]:
            if table in tables:
                rows += run(title, {
                    'ashlar': ashlar(f'ram:{SIZE >> 20}M', ''),
                    'nbdkit memory': lambda: fresh(['nbdkit', '-f', '-U', sock, 'memory', str(SIZE)]),
                }, NBD_JOBS, args.rounds, lambda name, job: measure(sock, name, args.seconds, job))
        if 'nbd-file' in tables:
            rows += run('NBD, file with direct I/O', {
                'ashlar': ashlar(image, ''),
                'qemu-storage-daemon': qsd('io_uring'),
                'nbdkit file': lambda: fresh(['nbdkit', '-f', '-U', sock, 'file', image, 'cache=none']),
            }, NBD_JOBS, args.rounds, lambda name, job: nbd_job(sock, name, args.seconds, job))
        if 'nbd-threads' in tables:
            rows += run('NBD, file with direct I/O, without io_uring', {
                'ashlar': ashlar(image, '', '--io=threads'),
                'ashlar with io_uring': ashlar(image, '', '--io=uring'),
                'qemu-storage-daemon': qsd('threads'),
            }, NBD_JOBS, args.rounds, lambda name, job: nbd_job(sock, name, args.seconds, job))
        if 'nbd-tls' in tables:
            pki = os.path.join(work, 'pki')
            certificates(pki)
            rows += run('NBD over TLS, RAM', {
                'ashlar': ashlar(f'ram:{SIZE >> 20}M', pki, '--tls=require', '--tls-dir', pki),
                'nbdkit memory': lambda: fresh(['nbdkit', '-f', '-U', sock, '--tls=require', f'--tls-certificates={pki}', 'memory', str(SIZE)], pki),
            }, NBD_JOBS, args.rounds, lambda pki, job: tls_job(sock, pki, args.seconds, job))
        if 'connections' in tables:
            rows += run('NBD, RAM, lean clients, several connections', {
                'ashlar': ashlar(f'ram:{SIZE >> 20}M', ''),
                'nbdkit memory': lambda: fresh(['nbdkit', '-f', '-U', sock, 'memory', str(SIZE)]),
            }, CONNECTION_JOBS, args.rounds, lambda name, job: load_job(sock, name, args.seconds, job))
            rows += run('NBD, file with direct I/O, several connections', {
                'ashlar': ashlar(image, ''),
                'qemu-storage-daemon': qsd('io_uring'),
            }, CONNECTION_JOBS, args.rounds, lambda name, job: nbd_job(sock, name, args.seconds, job))
        if 'fuse' in tables:
            if os.geteuid() != 0:
                sys.exit('fuse: loop devices need root')
            rows += fuse(args, work, image, control)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    record(args.json, rows)


class Looped:
    """A server whose file is behind a loop device."""

    def __init__(self, server, path):
        self.server = server
        self.loop = subprocess.run(['losetup', '-f', '--show', '--direct-io=on', path], check=True,
                                   stdout=subprocess.PIPE).stdout.decode().strip()

    def stop(self):
        subprocess.run(['losetup', '-d', self.loop], check=True)
        time.sleep(0.2)
        self.server.stop()


def fuse(args, work, image, control):
    mount, single = os.path.join(work, 'mnt'), os.path.join(work, 'single')
    os.mkdir(mount)
    open(single, 'w').close()

    def ashlar(*options):
        path = os.path.join(mount, 'dev', os.path.basename(image))
        server = Server('ashlar', [ASHLAR, 'serve', image, '--mount', mount, '--control', control, *options],
                        lambda: os.path.exists(path))
        looped = Looped(server, path)
        return looped, looped.loop

    def nbdfuse():
        server = Server('nbdfuse', ['nbdfuse', single, '--command', 'nbdkit', '-s', 'file', image],
                        lambda: os.stat(single).st_size == SIZE, ['fusermount3', '-u', single])
        looped = Looped(server, single)
        return looped, looped.loop

    jobs = [('128k', 'read', 8), ('128k', 'write', 8), ('4k', 'randread', 32)]

    def measure(loop, job):
        return fio([f'--filename={loop}', '--ioengine=libaio', '--direct=1'], args.seconds, job)

    # nbdkit's file plugin reads and writes through the page cache: like with like first.
    rows = run('FUSE and a direct-I/O loop device, file through the page cache',
               {'ashlar': lambda: ashlar('--buffered'), 'nbdfuse on nbdkit file': nbdfuse},
               jobs, args.rounds, measure)
    return rows + run('FUSE and a direct-I/O loop device, file: ours with direct I/O, theirs through the page cache',
                      {'ashlar': ashlar, 'nbdfuse on nbdkit file': nbdfuse}, jobs, args.rounds, measure)


if __name__ == '__main__':
    main()
