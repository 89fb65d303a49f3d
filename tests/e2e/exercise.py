#!/usr/bin/env python3
"""exercise.py - exercises of a file system, of the kinds that xfstests' generic group has; xfstests.sh runs them

usage: exercise.py fsx FILE KEPT [--operations N] [--direct] [--mixed] [--mmap] [--seed N]
           random operations on FILE, each of which is done to a copy in memory, too: what is read must be the same. At the end
           the copy goes to KEPT, for a comparison after the file system was mounted again. --direct: reads and writes
           with O_DIRECT; --mixed: both ways by turns; --mmap: some through a mapping
       exercise.py stress DIRECTORY [--processes N] [--seconds N] [--full] [--ends]
           processes that make, write, rename, link, cut and remove files and directories in one tree. --full: they keep the
           file system full (no room is no error otherwise, either); --ends: the file system may end at any time
       exercise.py durable DIRECTORY NOTES
           files that were flushed with their directory, until the file system ends; their sums are noted in NOTES, elsewhere
       exercise.py copies DIRECTORY [--seconds N]
           chains of copies of files, of which the last one must be the same as the first
       exercise.py links DIRECTORY
           hard links: the count in the inode after each link and each removal
       exercise.py names DIRECTORY [--operations N]
           a directory with names that come and go: what it lists is what is there
       exercise.py holes FILE [--operations N]
           writes anywhere in a sparse file of 64 MiB: the data, and zeroes between them
Exit 1 with what is wrong. Nothing here is taken from xfstests but what its cases test.
"""
import argparse, collections, ctypes, errno, hashlib, mmap, multiprocessing, os, random, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2 | 1, 8, 16, 32
BLOCK = 4096


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, offset, length):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def aligned(data):
    """A copy of data in memory that direct I/O can use."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


class Fsx:
    """A file, and what it must contain."""
    MOST = 256 << 10

    def __init__(self, path, options):
        self.random = random.Random(options.seed)
        self.content, self.log = bytearray(), collections.deque(maxlen=30)
        self.path, self.options, self.failed = path, options, set()
        open(path, 'wb').close()
        self.fd = self.direct = None
        self.open()

    def open(self):
        for fd in (self.fd, self.direct):
            if fd is not None:
                os.close(fd)
        self.fd = os.open(self.path, os.O_RDWR)
        self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)

    def around(self):
        """The page cache is avoided this time."""
        return self.options.direct or (self.options.mixed and self.random.random() < 0.5)

    def range(self, end, unit):
        """A part of [0, end), or None."""
        units = end // unit
        if units <= 0:
            return None
        offset = self.random.randrange(units)
        length = self.random.randrange(1, min(units - offset, (64 << 10) // unit) + 1)
        return offset * unit, length * unit

    def compare(self, offset, data):
        wanted = self.content[offset:offset + len(data)]
        if data != wanted:
            bad = next((n for n, (a, b) in enumerate(zip(data, wanted)) if a != b), min(len(data), len(wanted)))
            sys.exit(f'{self.path}: byte {offset + bad} of {len(self.content)} is wrong; seed {self.options.seed}; the last operations:\n  '
                     + '\n  '.join(self.log))

    def read(self):
        around = self.around()
        part = self.range(len(self.content), BLOCK if around else 1)
        if not part:
            return
        offset, length = part
        self.log.append(f'read {offset} {length} {"direct" if around else ""}')
        if around:
            memory = mmap.mmap(-1, length)
            done = os.preadv(self.direct, [memory], offset)
            data = memory[:done]
        else:
            data = os.pread(self.fd, length, offset)
        self.compare(offset, data)
        if len(data) != length:
            sys.exit(f'{self.path}: a read of {length} bytes at {offset} had {len(data)}')

    def write(self):
        around = self.around()
        offset, length = self.range(self.MOST, BLOCK if around else 1)
        data = self.random.randbytes(length)
        self.log.append(f'write {offset} {length} {"direct" if around else ""}')
        if around:
            done = os.pwritev(self.direct, [aligned(data)], offset)
        else:
            done = os.pwrite(self.fd, data, offset)
        if done != length:
            sys.exit(f'{self.path}: a write of {length} bytes at {offset} wrote {done}')
        self.put(offset, data)

    def put(self, offset, data):
        if len(self.content) < offset + len(data):
            self.content.extend(bytes(offset + len(data) - len(self.content)))
        self.content[offset:offset + len(data)] = data

    def mapped(self):
        part = self.range(len(self.content), 1)
        if not part:
            return
        offset, length = part
        write = self.random.random() < 0.5
        self.log.append(f'mmap {"write" if write else "read"} {offset} {length}')
        with mmap.mmap(self.fd, len(self.content)) as memory:
            self.compare(offset, memory[offset:offset + length])
            if write:
                data = self.random.randbytes(length)
                memory[offset:offset + length] = data
                self.put(offset, data)
                if self.random.random() < 0.5:
                    memory.flush()

    def truncate(self):
        size = self.random.randrange(self.MOST)
        self.log.append(f'truncate {size}')
        os.ftruncate(self.fd, size)
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def allocate(self):
        offset, length = self.range(self.MOST, 1)
        keep = self.random.random() < 0.5
        self.log.append(f'allocate {offset} {length} {"keep size" if keep else ""}')
        fallocate(self.fd, KEEP_SIZE if keep else 0, offset, length)
        if not keep and offset + length > len(self.content):
            self.content.extend(bytes(offset + length - len(self.content)))

    def clear(self):
        part = self.range(len(self.content), 1)
        if part:
            offset, length = part
            mode = self.random.choice((PUNCH, ZERO, ZERO | KEEP_SIZE))
            self.log.append(f'clear {offset} {length} mode {mode}')
            fallocate(self.fd, mode, offset, length)
            self.content[offset:offset + length] = bytes(length)

    def collapse(self):
        part = self.range(len(self.content) - 1, BLOCK)
        if part:
            offset, length = part
            self.log.append(f'collapse {offset} {length}')
            fallocate(self.fd, COLLAPSE, offset, length)
            del self.content[offset:offset + length]

    def insert(self):
        part = self.range(len(self.content) - 1, BLOCK)
        if part and len(self.content) + part[1] <= self.MOST:
            offset, length = part
            self.log.append(f'insert {offset} {length}')
            fallocate(self.fd, INSERT, offset, length)
            self.content[offset:offset] = bytes(length)

    def copy(self):
        half = len(self.content) // 2
        part = self.range(half, 1)
        if part and half + part[1] <= self.MOST:
            offset, length = part
            to = self.random.randrange(half, self.MOST - length + 1)
            self.log.append(f'copy {offset} {length} to {to}')
            done = os.copy_file_range(self.fd, self.fd, length, offset, to)
            self.put(to, bytes(self.content[offset:offset + done]))

    def settle(self):
        self.log.append('fsync, drop the cache, open again')
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.open()

    def run(self):
        operations = [(self.read, 30), (self.write, 30), (self.truncate, 5), (self.allocate, 5), (self.clear, 10),
                      (self.collapse, 4), (self.insert, 4), (self.copy, 5), (self.settle, 5)]
        if self.options.mmap:
            operations.append((self.mapped, 30))
        calls, weights = zip(*operations)
        for call in self.random.choices(calls, weights, k=self.options.operations):
            try:
                call()
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise SystemExit(f'{self.path}: {self.log[-1]}: {error}; seed {self.options.seed}')
                self.failed.add(call.__name__)
            if os.fstat(self.fd).st_size != len(self.content):
                sys.exit(f'{self.path}: has {os.fstat(self.fd).st_size} bytes, not {len(self.content)}, after {self.log[-1]}')
        os.fsync(self.fd)
        with open(self.path, 'rb') as file:
            self.compare(0, file.read())
        if self.failed:
            print(f'not supported here: {", ".join(sorted(self.failed))}')


def fsx(options):
    exerciser = Fsx(options.path, options)
    exerciser.run()
    with open(options.other, 'wb') as file:
        file.write(exerciser.content)


ALLOWED = {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC, errno.EMLINK, errno.EINVAL,
           errno.EBUSY, errno.ENODATA, errno.EPERM, errno.ELOOP}
ENDED = {errno.EIO, errno.EROFS, errno.ESHUTDOWN, errno.ENXIO, errno.ENODEV}


def one(chance, root, full):
    """One operation in a tree of directories."""
    directory = os.path.join(root, *(f'd{chance.randrange(4)}' for _ in range(chance.randrange(3))))
    name = lambda: os.path.join(directory, f'f{chance.randrange(20)}')
    operation = chance.randrange(12)
    if operation == 0:
        os.makedirs(directory, exist_ok=True)
    elif operation == 1 and not full:
        os.rmdir(directory) if directory != root else None
    elif operation == 2:
        os.rename(name(), os.path.join(root, f'd{chance.randrange(4)}', f'f{chance.randrange(20)}'))
    elif operation == 3:
        os.link(name(), name())
    elif operation == 4:
        os.symlink(os.path.basename(name()), name())
    elif operation == 5 and not (full and chance.random() < 0.8):
        os.unlink(name())
    elif operation == 6:
        os.setxattr(name(), b'user.mark', chance.randbytes(chance.randrange(1, 200)), follow_symlinks=False)
    elif operation == 7:
        os.truncate(name(), chance.randrange(1 << 20))
    else:
        fd = os.open(name(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            at, length = chance.randrange(1 << 20), chance.randrange(1, (1 << 20) if full else 64 << 10)
            if operation == 8:
                fallocate(fd, chance.choice((0, KEEP_SIZE, PUNCH, ZERO)), at, length)
            elif operation == 9:
                os.fsync(fd)
            else:
                os.pwrite(fd, bytes(length) if operation == 10 else chance.randbytes(length), at)
        finally:
            os.close(fd)


def stressing(root, seed, options):
    chance, end, without_room, done = random.Random(seed), time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end:
        done += 1
        try:
            one(chance, root, options.full)
        except OSError as error:
            without_room += error.errno == errno.ENOSPC
            if options.ends and error.errno in ENDED:
                return
            if error.errno not in ALLOWED:
                print(f'{root}: {error}', file=sys.stderr)
                sys.exit(1)
    if options.full and not without_room:
        print(f'{root}: the file system was never full in {done} operations', file=sys.stderr)
        sys.exit(1)


def stress(options):
    processes = [multiprocessing.Process(target=stressing, args=(options.path, options.seed + n, options))
                 for n in range(options.processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)


def durable(options):
    chance, directory = random.Random(options.seed), os.open(options.path, os.O_DIRECTORY)
    with open(options.other, 'a') as notes:
        for number in range(1 << 30):
            data = chance.randbytes(chance.randrange(1, 256 << 10))
            path = os.path.join(options.path, f'k{number}')
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.write(fd, data)
                os.fsync(fd)
                os.close(fd)
                os.fsync(directory)
            except OSError as error:
                if error.errno in ENDED:
                    return
                raise
            # Only now: what was noted before must be there.
            print(f'{hashlib.sha256(data).hexdigest()}  {path}', file=notes, flush=True)


def contents(path):
    with open(path, 'rb') as file:
        return file.read()


def copies(options):
    chance, end, rounds = random.Random(options.seed), time.monotonic() + options.seconds, 0
    while rounds < 2 or time.monotonic() < end:
        rounds += 1
        first = chance.randbytes(chance.randrange(1, 4 << 20))
        last = os.path.join(options.path, 'c0')
        with open(last, 'wb') as file:
            file.write(first)
        for number in range(1, 8):
            following = os.path.join(options.path, f'c{number}')
            with open(last, 'rb') as source, open(following, 'wb') as target:
                while piece := source.read(chance.randrange(1, 300000)):
                    target.write(piece)
                os.fsync(target.fileno())
                os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.unlink(last)
            last = following
        if contents(last) != first:
            sys.exit(f'{last}: differs from what it was copied from')


def links(options):
    path = os.path.join(options.path, 'inode')
    open(path, 'wb').close()
    count = lambda: os.stat(path).st_nlink
    for number in range(1, 200):
        os.link(path, f'{path}-{number}')
        if count() != number + 1:
            sys.exit(f'{path}: {count()} links, not {number + 1}')
    for number in range(1, 200):
        os.unlink(f'{path}-{number}')
        if count() != 200 - number:
            sys.exit(f'{path}: {count()} links, not {200 - number}')


def names(options):
    chance, there = random.Random(options.seed), {}
    for number in range(options.operations):
        name = f'{chance.randrange(options.operations // 4):x}-' + 'n' * chance.randrange(200)
        path = os.path.join(options.path, name)
        if name in there:
            if os.stat(path).st_ino != there.pop(name):
                sys.exit(f'{path}: another inode')
            os.unlink(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            there[name] = os.stat(path).st_ino
        if number % 1000 == 0 and set(os.listdir(options.path)) != set(there):
            sys.exit(f'{options.path}: lists other names than there are')
    if set(os.listdir(options.path)) != set(there):
        sys.exit(f'{options.path}: lists other names than there are')


def holes(options):
    chance, written = random.Random(options.seed), {}
    size, unit = 64 << 20, 8192
    with open(options.path, 'w+b') as file:
        os.ftruncate(file.fileno(), size)
        for _ in range(options.operations):
            at = chance.randrange(size // unit) * unit
            written[at] = chance.randbytes(unit)
            os.pwrite(file.fileno(), written[at], at)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for at in range(0, size, unit):
            if os.pread(file.fileno(), unit, at) != written.get(at, bytes(unit)):
                sys.exit(f'{options.path}: wrong at {at}, where there {"are data" if at in written else "is a hole"}')


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    exercises = {call.__name__: call for call in (fsx, stress, durable, copies, links, names, holes)}
    parser.add_argument('exercise', choices=exercises)
    parser.add_argument('path')
    parser.add_argument('other', nargs='?')
    parser.add_argument('--operations', type=int, default=2000)
    parser.add_argument('--processes', type=int, default=4)
    parser.add_argument('--seconds', type=float, default=5)
    parser.add_argument('--seed', type=int, default=int.from_bytes(os.urandom(4), 'little'))
    for flag in ('direct', 'mixed', 'mmap', 'full', 'ends'):
        parser.add_argument(f'--{flag}', action='store_true')
    options = parser.parse_args()
    if (options.other is None) == (options.exercise in ('fsx', 'durable')):
        parser.error('fsx and durable take a second path, and only they')
    exercises[options.exercise](options)


if __name__ == '__main__':
    main()
