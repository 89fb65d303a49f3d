//! Files, and the errors of descriptors.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Instant;

use io_uring::types::FsyncFlags;

use super::super::is_refusal;
use super::super::kernel::KernelRing;
use super::*;
use crate::ring::STREAM;

fn file(contents: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    rustix::io::pwrite(&file, contents, 0).unwrap();
    file
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    let count = rustix::io::pread(file, &mut bytes, 0).unwrap();
    bytes.truncate(count);
    bytes
}

fn read(from: types::Fd, into: &mut [u8], offset: u64) -> squeue::Entry {
    opcode::Read::new(from, into.as_mut_ptr(), into.len() as u32).offset(offset).build()
}

fn write_at(to: types::Fd, bytes: &[u8], offset: u64) -> squeue::Entry {
    opcode::Write::new(to, bytes.as_ptr(), bytes.len() as u32).offset(offset).build()
}

#[test]
fn reads_and_writes_at_offsets() {
    on_both(|rig| {
        let (file, mut four) = (file(b"0123456789"), [0; 4]);
        assert_eq!(rig.run(read(fd(&file), &mut four, 3)), 4);
        assert_eq!(&four, b"3456");
        assert_eq!(rig.run(read(fd(&file), &mut four, 8)), 2, "at the end of the file");
        assert_eq!(&four, b"8956");
        assert_eq!(rig.run(read(fd(&file), &mut four, 10)), 0);
        assert_eq!(rig.run(write_at(fd(&file), b"abc", 9)), 3);
        let dsync = opcode::Write::new(fd(&file), b"Z".as_ptr(), 1).offset(0);
        assert_eq!(rig.run(dsync.rw_flags(libc::RWF_DSYNC as _).build()), 1);
        assert_eq!(contents(&file), b"Z12345678abc");
        // Flags that the kernel does not know.
        let wrong = opcode::Write::new(fd(&file), b"Z".as_ptr(), 1).offset(0);
        assert_eq!(rig.run(wrong.rw_flags(1 << 30).build()), -libc::EOPNOTSUPP);
    });
}

#[test]
fn reads_and_writes_in_pieces() {
    on_both(|rig| {
        let file = file(b"0123456789");
        let (mut one, mut other) = ([0_u8; 3], [0_u8; 9]);
        let piece = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let pieces = [piece(&mut one), piece(&mut other)];
        let readv = opcode::Readv::new(fd(&file), pieces.as_ptr(), 2).offset(2).build();
        assert_eq!(rig.run(readv), 8);
        assert_eq!((&one, &other[..5]), (b"234", &b"56789"[..]));
        let writev = opcode::Writev::new(fd(&file), pieces.as_ptr(), 2).offset(9).build();
        assert_eq!(rig.run(writev), 12);
        assert_eq!(contents(&file), b"01234567823456789\0\0\0\0");
    });
}

#[test]
fn streams_read_from_their_position() {
    on_both(|rig| {
        // epoll refuses a regular file.
        let (file, mut four) = (file(b"012345"), [0; 4]);
        assert_eq!(rig.run(read(fd(&file), &mut four, STREAM)), 4);
        assert_eq!(rig.run(read(fd(&file), &mut four, STREAM)), 2);
        assert_eq!(&four, b"4523");
        let (from, to) = std::io::pipe().unwrap();
        rig.push(1, read(fd(&from), &mut four, STREAM));
        assert!(!rig.look(Some(1)));
        assert_eq!(rig.run(write_at(fd(&to), b"abc", STREAM)), 3);
        assert_eq!(rig.wait(1), 3);
        assert_eq!(&four, b"abc3");
        drop(to);
        assert_eq!(rig.run(read(fd(&from), &mut four, STREAM)), 0);
    });
}

#[test]
fn flushes_and_holes() {
    on_both(|rig| {
        let (file, (from, to)) = (file(b"0123456789"), std::io::pipe().unwrap());
        let fsync = |of, flags| opcode::Fsync::new(of).flags(flags).build();
        assert_eq!(rig.run(fsync(fd(&file), FsyncFlags::DATASYNC)), 0);
        assert_eq!(rig.run(fsync(fd(&file), FsyncFlags::empty())), 0);
        assert_eq!(rig.run(fsync(fd(&to), FsyncFlags::DATASYNC)), -libc::EINVAL);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let hole = |of, mode| opcode::Fallocate::new(of, 4).offset(2).mode(mode).build();
        assert_eq!(rig.run(hole(fd(&file), punch)), 0);
        assert_eq!(contents(&file), b"01\0\0\0\x006789");
        assert_eq!(rig.run(hole(fd(&to), punch)), -libc::ESPIPE);
        assert_eq!(rig.run(hole(fd(&from), punch)), -libc::EBADF);
        // A hole does not change the size.
        let alone = hole(fd(&file), libc::FALLOC_FL_PUNCH_HOLE);
        assert_eq!(rig.run(alone), -libc::EOPNOTSUPP);
    });
}

#[test]
fn errors_of_descriptors() {
    on_both(|rig| {
        let (file, (from, to)) = (file(b"0123"), std::io::pipe().unwrap());
        let mut four = [0; 4];
        // By design, threads refuse an offset in a stream, as pread(2) does; io_uring ignores it.
        rig.push(6, read(fd(&from), &mut four, 5));
        assert_eq!(rig.look(Some(6)), !rig.is_kernel());
        let written = rig.run(write_at(fd(&to), b"abcd", 5));
        let expected = if rig.is_kernel() { 4 } else { -libc::ESPIPE };
        assert_eq!((rig.wait(6), written), (expected, expected));
        // By design, threads first wait until there is something to read.
        rig.push(5, read(fd(&to), &mut four, STREAM));
        assert_eq!(rig.look(Some(5)), rig.is_kernel());
        rig.cancel(5);
        let expected = if rig.is_kernel() { -libc::EBADF } else { -libc::ECANCELED };
        assert_eq!(rig.wait(5), expected);
        assert_eq!(rig.run(write_at(fd(&from), &four, STREAM)), -libc::EBADF);
        rig.recv(1, &file, &mut four);
        assert_eq!(rig.wait(1), -libc::ENOTSOCK);
        rig.send(2, &file, &four);
        assert_eq!(rig.wait(2), -libc::ENOTSOCK);
        assert_eq!(rig.run(opcode::Shutdown::new(fd(&to), 2).build()), -libc::ENOTSOCK);
        rig.poll(3, &file, IN | OUT);
        assert_eq!(rig.wait(3), IN | OUT, "always ready");
        rig.poll(4, &file, IN);
        assert_eq!(rig.wait(4), IN);

        // No descriptor has this number.
        let none = types::Fd(1_000_000);
        let nothing = std::ptr::null_mut::<u32>();
        let address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [1; 108] };
        let inet = libc::sockaddr_in {
            sin_family: libc::AF_INET as _,
            sin_port: 1,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        for entry in [
            read(none, &mut four, 0),
            read(none, &mut four, STREAM),
            write_at(none, &four, 0),
            opcode::Fsync::new(none).flags(FsyncFlags::DATASYNC).build(),
            opcode::Fallocate::new(none, 4).build(),
            opcode::Recv::new(none, four.as_mut_ptr(), 4).build(),
            opcode::Send::new(none, four.as_ptr(), 4).build(),
            opcode::Accept::new(none, nothing.cast(), nothing).build(),
            opcode::Connect::new(none, (&raw const address).cast(), 20).build(),
            opcode::Connect::new(none, (&raw const inet).cast(), 16).build(),
            opcode::PollAdd::new(none, IN as u32).build(),
            opcode::Shutdown::new(none, 2).build(),
        ] {
            let shown = format!("{entry:?}");
            assert_eq!(rig.run(entry), -libc::EBADF, "{shown}");
        }
    });
}

/// More operations than there are threads for one file, which never end: those on other files continue.
#[test]
fn a_silent_file_does_not_hold_others_back() {
    const COUNT: u64 = 100;
    on_both(|rig| {
        let (from, to) = std::io::pipe().unwrap();
        let (file, mut byte) = (file(b"0123"), [0_u8; COUNT as usize]);
        let pieces: Vec<_> = byte
            .iter_mut()
            .map(|byte| libc::iovec { iov_base: std::ptr::from_mut(byte).cast(), iov_len: 1 })
            .collect();
        for (number, piece) in pieces.iter().enumerate() {
            let entry = opcode::Readv::new(fd(&from), piece, 1).offset(STREAM).build();
            rig.push(number as u64, entry);
        }
        rig.enter(None);
        let mut four = [0; 4];
        assert_eq!(rig.run(read(fd(&file), &mut four, 0)), 4);
        assert_eq!(rig.run(opcode::Fsync::new(fd(&file)).build()), 0);
        write(&to.into(), &[7; COUNT as usize]);
        assert!((0..COUNT).all(|number| rig.wait(number) == 1));
        assert_eq!(byte, [7; COUNT as usize]);
    });
}

/// When its first operation ends, a thread is free for another file, and its second one needs one more.
#[test]
fn a_file_goes_on_while_all_threads_are_taken() {
    const COUNT: u64 = 20;
    on_both(|rig| {
        let pipes: Vec<_> = (0..5).map(|_| std::io::pipe().unwrap()).collect();
        let mut bytes = [0_u8; 5 * COUNT as usize];
        let pieces: Vec<_> = bytes
            .iter_mut()
            .map(|byte| libc::iovec { iov_base: std::ptr::from_mut(byte).cast(), iov_len: 1 })
            .collect();
        let read = |number: u64| {
            let from = fd(&pipes[(number / COUNT) as usize].0);
            opcode::Readv::new(from, &raw const pieces[number as usize], 1).offset(STREAM).build()
        };
        rig.push(0, read(0));
        (COUNT..5 * COUNT).for_each(|number| rig.push(number, read(number)));
        rig.enter(None);
        rig.push(1, read(1));
        rig.enter(None);
        let write = |pipe: usize, count| {
            let to = pipes[pipe].1.as_fd().try_clone_to_owned().unwrap();
            write(&to, &vec![7; count]);
        };
        write(0, 2);
        assert_eq!((rig.wait(0), rig.wait(1)), (1, 1));
        (1..5).for_each(|pipe| write(pipe, COUNT as usize));
        assert!((COUNT..5 * COUNT).all(|number| rig.wait(number) == 1));
    });
}

/// A completion of a thread of the pool ends the reactor's sleep: it would last for `LONG`.
#[test]
fn completions_of_threads_wake_a_sleeper() {
    on_both(|rig| {
        let (file, mut four) = (file(b"0123"), [[0; 4]; 8]);
        let start = Instant::now();
        for round in 0..5000_u64 {
            let count = 1 + round % 8;
            for number in 0..count {
                let entry = read(fd(&file), &mut four[number as usize], 0);
                // Not from the page cache at once: the kernel's ring has its own threads, too.
                rig.push(number, entry.flags(squeue::Flags::ASYNC));
            }
            for number in 0..count {
                assert_eq!(rig.wait(number), 4);
            }
        }
        assert!(start.elapsed() < LONG, "a wake-up was lost");
    });
}

#[test]
fn what_no_thread_has_begun_is_cancelled() {
    on_both(|rig| {
        let (from, to) = std::io::pipe().unwrap();
        let full = vec![1; rustix::pipe::fcntl_getpipe_size(&to).unwrap()];
        write(&to.as_fd().try_clone_to_owned().unwrap(), &full);
        // In one batch with its cancel.
        rig.push(1, write_at(fd(&to), b"abc", STREAM));
        rig.cancel(1);
        assert_eq!(rig.wait(1), -libc::ECANCELED);
        // By design, a thread that has begun to write cannot be stopped.
        rig.push(2, write_at(fd(&to), b"abc", STREAM));
        assert!(!rig.look(Some(2)));
        rig.cancel(2);
        let is_cancelled = rig.look(Some(2));
        assert_eq!(is_cancelled, rig.is_kernel());
        let mut bytes = vec![0; full.len()];
        assert_eq!(rustix::io::read(&from, &mut bytes), Ok(full.len()));
        assert_eq!(rig.wait(2), if is_cancelled { -libc::ECANCELED } else { 3 });
        // Of what has ended, too late.
        rig.push(3, write_at(fd(&to), b"abc", STREAM));
        assert_eq!(rig.wait(3), 3);
        rig.cancel(3);
        rig.look(None);
    });
}

#[test]
fn a_restricted_ring_reads_and_writes_and_opens_nothing() {
    for plain in [false, true] {
        let ring = match KernelRing::new(64, plain, true) {
            Err(error) if is_refusal(&error) => {
                eprintln!("not checked with io_uring: {error}");
                return;
            }
            ring => ring.unwrap(),
        };
        // Files are registered afterwards, as a reactor does.
        ring.register_table(4).unwrap();
        let mut rig = Rig { ring: Ring::Kernel(ring), posted: HashMap::new() };
        let (file, mut four) = (file(b"0123456789"), [0; 4]);
        rig.ring.register_file(0, Some(file.as_fd())).unwrap();
        assert_eq!(rig.run(write_at(fd(&file), b"ab", 4)), 2);
        let fixed = read(types::Fd(0), &mut four, 3).flags(squeue::Flags::FIXED_FILE);
        assert_eq!(rig.run(fixed), 4);
        assert_eq!(&four, b"3ab6");
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/".as_ptr()).build();
        assert_eq!(rig.run(open), -libc::EACCES);
        let stream = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        assert_eq!(rig.run(stream), -libc::EACCES);
        let linked = read(fd(&file), &mut four, 0).flags(squeue::Flags::IO_LINK);
        assert_eq!(rig.run(linked), -libc::EACCES, "entries are not linked");
    }
}
