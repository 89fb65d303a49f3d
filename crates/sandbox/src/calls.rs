//! The list of system calls.
//!
//! Sources: the manual page of each call; seccomp(2); the kernel's `include/uapi/linux/` and `include/uapi/asm-generic/`.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter_all_threads,
};

use crate::{Policy, SandboxError, Sockets};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// On open descriptors, and on paths that landlock checks or that reveal only a file's size and times.
const FILES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_flock,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_umask,
    // Not executable: there is no execve(2).
    libc::SYS_memfd_create,
];

/// Waiting, in all ways.
const EVENTS: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    // The rings exist, and are restricted by the kernel.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Memory, threads, signals to this process, and information about it.
const PROCESS: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_capget,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Refused with ENOSYS by a filter of its own, so that the C library uses clone(2).
    libc::SYS_clone3,
];

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_time,
    libc::SYS_pause,
    libc::SYS_getrlimit,
    libc::SYS_sync_file_range,
    // The thread's own register.
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

/// Changes below the writable directories, which landlock checks, and of open files.
const CHANGES: &[c_long] = &[
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchown,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fsetxattr,
];
/// The same, on machines that have them.
#[cfg(target_arch = "x86_64")]
const LEGACY_CHANGES: &[c_long] = &[
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_symlink,
];
/// renameat(2), which rename(3) calls on these machines; the crate libc does not name it.
#[cfg(target_arch = "aarch64")]
const LEGACY_CHANGES: &[c_long] = &[38];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEGACY_CHANGES: &[c_long] = &[];

/// The calls that set the mode of a file, with the argument that has the mode, and the one with the flags that make it valid.
const OPENS: &[(c_long, u8, u8)] = &[(libc::SYS_openat, 3, 2)];
#[cfg(target_arch = "x86_64")]
const LEGACY_OPENS: &[(c_long, u8, u8)] = &[(libc::SYS_open, 2, 1)];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_OPENS: &[(c_long, u8, u8)] = &[];
/// The same, of changes. (mkdir(2) takes no such bits, but this is no reason to pass them.)
const MODES: &[(c_long, u8)] = &[(libc::SYS_fchmod, 1), (libc::SYS_mkdirat, 2)];
#[cfg(target_arch = "x86_64")]
const LEGACY_MODES: &[(c_long, u8)] = &[(libc::SYS_mkdir, 1)];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_MODES: &[(c_long, u8)] = &[];

/// The mode bits of a program that runs with the rights of its owner or group: a set-uid program of root escapes any sandbox.
const PRIVILEGED_MODES: u64 = (libc::S_ISUID | libc::S_ISGID) as u64;
/// Of open(2), with a mode: O_CREAT, and O_TMPFILE without the bit of O_DIRECTORY that it includes.
const CREATES: u64 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;

/// Owners and attributes by path.
const OWNERS: &[c_long] = &[libc::SYS_fchownat, libc::SYS_lsetxattr];
#[cfg(target_arch = "x86_64")]
const LEGACY_OWNERS: &[c_long] = &[libc::SYS_lchown];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_OWNERS: &[c_long] = &[];

/// On open sockets.
const SERVED: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
];

/// Commands of fcntl(2) for this process's own descriptors. F_SETOWN, by which the kernel sends signals, is not among them.
const FCNTL: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// Requests of ioctl(2). TIOCSTI, which types on a terminal, is not among them.
const IOCTL: &[u32] = &[
    0x5401,      // TCGETS: is it a terminal?
    0x802c_542a, // TCGETS2
    0x5413,      // TIOCGWINSZ
    0x541b,      // FIONREAD
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x125e,      // BLKROGET
    0x1260,      // BLKGETSIZE
    0x1268,      // BLKSSZGET
    0x1277,      // BLKDISCARD
    0x1278,      // BLKIOMIN
    0x1279,      // BLKIOOPT
    0x127b,      // BLKPBSZGET
    0x127f,      // BLKZEROOUT
    0x8008_1272, // BLKGETSIZE64
    0x4c05,      // LOOP_GET_STATUS64
    0xc020_660b, // FS_IOC_FIEMAP
    0x8004_e500, // FUSE_DEV_IOC_CLONE
];

/// Options of prctl(2): names of threads and of memory, and queries.
const PRCTL: &[i32] = &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_GET_DUMPABLE, 0x5356_4d41];

/// Flags that clone(2) must have, and must not have: it may only make a thread of this process, in the same namespaces.
const THREAD: u64 = libc::CLONE_THREAD as u64;
const NOT_A_THREAD: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_VFORK
    | libc::CLONE_PTRACE
    | libc::CLONE_PARENT
    | libc::CLONE_PIDFD) as u64;

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// The type of a socket, without the flags in the same argument.
const SOCKET_TYPE: u64 = 0xf;

type Compiled<T> = Result<T, BackendError>;

/// An argument whose masked bits have this value.
fn masked(index: u8, mask: u64, value: u64) -> Compiled<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

fn equal(index: u8, value: u64) -> Compiled<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// A pointer that is null.
fn null(index: u8) -> Compiled<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// A rule for each value of an argument.
fn one_of(index: u8, values: impl Iterator<Item = u64>) -> Compiled<Vec<SeccompRule>> {
    values.map(|value| SeccompRule::new(vec![equal(index, value)?])).collect()
}

fn rules(policy: &Policy) -> Compiled<Rules> {
    let mut rules = Rules::new();
    let mut allow = |calls: &[c_long]| {
        rules.extend(calls.iter().map(|call| (*call, Vec::new())));
    };
    [FILES, EVENTS, PROCESS, LEGACY].into_iter().for_each(&mut allow);
    if policy.changes {
        [CHANGES, LEGACY_CHANGES].into_iter().for_each(&mut allow);
    }
    if policy.times {
        allow(&[libc::SYS_utimensat]);
    }
    if policy.owners {
        [OWNERS, LEGACY_OWNERS].into_iter().for_each(&mut allow);
    }
    if policy.sockets >= Sockets::Served {
        allow(SERVED);
    }
    if policy.sockets >= Sockets::Listen {
        allow(&[libc::SYS_bind, libc::SYS_listen]);
        // A datagram socket could send to any path without connect(2); a Unix socket cannot reach another machine.
        let mut families = vec![libc::AF_UNIX];
        if policy.sockets >= Sockets::Connect {
            allow(&[libc::SYS_connect]);
            families.extend([libc::AF_INET, libc::AF_INET6]);
        }
        let stream = libc::SOCK_STREAM as u64;
        let rule = |family: i32| {
            SeccompRule::new(vec![equal(0, family as u64)?, masked(1, SOCKET_TYPE, stream)?])
        };
        let sockets: Compiled<Vec<_>> = families.into_iter().map(rule).collect();
        rules.insert(libc::SYS_socket, sockets?);
    }
    if policy.sockets >= Sockets::Served {
        // To the peer only: a datagram socket that was connected before, a service manager's, could send to any path.
        let peer = SeccompRule::new(vec![null(4)?])?;
        rules.insert(libc::SYS_sendto, vec![peer]);
        // Both ends are this process's, and such a socket has no other peer.
        let pair =
            [equal(0, libc::AF_UNIX as u64)?, masked(1, SOCKET_TYPE, libc::SOCK_SEQPACKET as u64)?];
        rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(pair.to_vec())?]);
    }
    if policy.changes && !policy.times {
        // Of an open file: landlock does not check the calls by path.
        let open = SeccompRule::new(vec![null(1)?])?;
        rules.insert(libc::SYS_utimensat, vec![open]);
    }
    // The owner's rights are what --owners restores.
    let modes = if policy.owners { 0 } else { PRIVILEGED_MODES };
    for (call, mode, flags) in [OPENS, LEGACY_OPENS].concat() {
        let without = SeccompRule::new(vec![masked(flags, CREATES, 0)?])?;
        let plain = SeccompRule::new(vec![masked(mode, modes, 0)?])?;
        rules.insert(call, vec![without, plain]);
    }
    for (call, mode) in [MODES, LEGACY_MODES].concat() {
        if policy.changes {
            rules.insert(call, vec![SeccompRule::new(vec![masked(mode, modes, 0)?])?]);
        }
    }
    let small = |value: &i32| *value as u64;
    rules.insert(libc::SYS_fcntl, one_of(1, FCNTL.iter().map(small))?);
    rules.insert(libc::SYS_prctl, one_of(0, PRCTL.iter().map(small))?);
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTL.iter().map(|it| u64::from(*it)))?);
    let not_executable =
        |call| Ok((call, vec![SeccompRule::new(vec![masked(2, EXECUTABLE, 0)?])?]));
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let (call, rule) = not_executable(call)?;
        rules.insert(call, rule);
    }
    let thread = SeccompRule::new(vec![masked(0, THREAD | NOT_A_THREAD, THREAD)?])?;
    rules.insert(libc::SYS_clone, vec![thread]);
    // abort(3) raises a signal in its own process.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![equal(0, own)?])?]);
    // Reading its own limits, not changing them.
    let look = SeccompRule::new(vec![equal(0, 0)?, null(2)?])?;
    rules.insert(libc::SYS_prlimit64, vec![look]);
    Ok(rules)
}

fn compile(rules: Rules, others: SeccompAction, these: SeccompAction) -> Compiled<BpfProgram> {
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, others, these, machine)?.try_into()
}

/// Installs the filters in all threads.
///
/// # Errors
/// The kernel refuses them.
pub(crate) fn seal(policy: &Policy) -> Result<(), SandboxError> {
    let failed = |why: &dyn std::fmt::Display| SandboxError::step("refuse system calls", why);
    let refused = |errno: i32| SeccompAction::Errno(errno as u32);
    // The C library takes clone(2), whose flags a filter can see, only where there is no clone3(2).
    let missing = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let missing = compile(missing, SeccompAction::Allow, refused(libc::ENOSYS));
    let missing = missing.map_err(|why| failed(&why))?;
    let listed = rules(policy)
        .and_then(|rules| compile(rules, refused(libc::EPERM), SeccompAction::Allow))
        .map_err(|why| failed(&why))?;
    for filter in [missing, listed] {
        match apply_filter_all_threads(&filter) {
            Ok(()) => {}
            Err(why) => return Err(failed(&why)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Policy {
        Policy::new().write_below("/").sockets(Sockets::Connect).owners(true).times(true)
    }

    /// Whether a filter allows a call on this machine: executes its instructions as the kernel does. (Sources: seccomp(2);
    /// `include/uapi/linux/bpf_common.h`, `include/uapi/linux/seccomp.h`.)
    fn passes(filter: &BpfProgram, call: c_long, arguments: [u64; 6]) -> bool {
        const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let words: Vec<u32> = [call as u32, ARCH, 0, 0]
            .into_iter()
            .chain(
                arguments.iter().flat_map(|argument| [*argument as u32, (argument >> 32) as u32]),
            )
            .collect();
        let (mut a, mut at) = (0, 0);
        loop {
            let step = &filter[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                0x20 => a = words[step.k as usize / 4],
                0x54 => a &= step.k,
                0x05 => at += step.k as usize,
                0x15 => at += jump(a == step.k),
                0x25 => at += jump(a > step.k),
                0x35 => at += jump(a >= step.k),
                0x06 => return step.k == 0x7fff_0000,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    /// The filter of a policy.
    fn filter(policy: &Policy) -> BpfProgram {
        compile(rules(policy).unwrap(), SeccompAction::Errno(1), SeccompAction::Allow).unwrap()
    }

    #[test]
    fn no_file_gets_the_bits_of_a_set_uid_program() {
        // The kernel ignores the high bits of the registers.
        const NOISE: u64 = 0xdead_beef_ff00_0000;
        let (looks, writes) = (Policy::new(), Policy::new().write_below("/"));
        let (restores, all) = (writes.clone().times(true), all());
        let creating = [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_RDWR];
        for policy in [&looks, &writes, &restores, &all] {
            let filter = filter(policy);
            let opens = |flags: i32, mode: u64| {
                let arguments = [3, 4, flags as u64 | 0xdead_beef << 32, mode, 0, 0];
                let at = passes(&filter, libc::SYS_openat, arguments);
                #[cfg(target_arch = "x86_64")]
                {
                    let [_, path, flags, mode, ..] = arguments;
                    let old = passes(&filter, libc::SYS_open, [path, flags, mode, 0, 0, 0]);
                    assert_eq!(at, old);
                }
                at
            };
            // Without O_CREAT the register may hold any value.
            assert!(opens(libc::O_RDONLY, u64::MAX) && opens(libc::O_DIRECTORY, u64::MAX));
            for flags in creating {
                assert!(opens(flags, 0o1777 | NOISE), "{policy:?}");
                for mode in [0o4755, 0o2755, 0o6000, 0o4000 | NOISE] {
                    assert_eq!(opens(flags, mode), policy.owners, "{mode:o} {policy:?}");
                }
            }
            let sets = |mode: u64| passes(&filter, libc::SYS_fchmod, [3, mode, 0, 0, 0, 0]);
            assert_eq!(sets(0o1777 | NOISE), policy.changes);
            assert_eq!(sets(0o4755), policy.owners);
            assert_eq!(sets(0o2755 | NOISE), policy.owners);
            let makes = |mode: u64| passes(&filter, libc::SYS_mkdirat, [3, 4, mode, 0, 0, 0]);
            assert_eq!((makes(0o777), makes(0o2777)), (policy.changes, policy.owners));
        }
    }

    #[test]
    fn times_are_changed_by_path_only_where_a_policy_says_so() {
        let writes = Policy::new().write_below("/");
        for (policy, of_open, by_path) in [
            (Policy::new(), false, false),
            (writes.clone(), true, false),
            (writes.times(true), true, true),
        ] {
            let filter = filter(&policy);
            let may = |path: u64| passes(&filter, libc::SYS_utimensat, [3, path, 5, 0, 0, 0]);
            assert_eq!((may(0), may(0x7fff_0000_0000), may(4)), (of_open, by_path, by_path));
        }
    }

    #[test]
    fn every_policy_compiles() {
        for sockets in [Sockets::None, Sockets::Served, Sockets::Listen, Sockets::Connect] {
            for policy in [Policy::new(), all()] {
                let rules = rules(&policy.sockets(sockets)).unwrap();
                let filter = compile(rules, SeccompAction::Errno(1), SeccompAction::Allow).unwrap();
                // The kernel accepts at most 4,096 instructions.
                assert!(filter.len() < 2048, "{}", filter.len());
            }
        }
    }

    #[test]
    fn no_policy_lets_programs_start_or_privileges_change() {
        let rules = rules(&all()).unwrap();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_kill,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_chroot,
            libc::SYS_setuid,
            libc::SYS_capset,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_open_by_handle_at,
            libc::SYS_fchmodat,
            libc::SYS_openat2,
            libc::SYS_mknodat,
            libc::SYS_seccomp,
        ] {
            assert!(!rules.contains_key(&call), "{call}");
        }
    }
}
