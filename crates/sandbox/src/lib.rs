//! The sandbox: this process drops the rights that it does not need before it parses bytes that others wrote.
//!
//! # Theory
//!
//! The threat is a parser that has been taken over: code of an attacker's choice runs in this process, with its rights (often
//! root's), its memory and its open descriptors. The sandbox keeps it from reaching anything else. Its means:
//!
//! | means | takes away |
//! |---|---|
//! | landlock | files that the [`Policy`] does not name; TCP; signals and abstract sockets to processes outside |
//! | seccomp | system calls that are not on a list: they fail with EPERM |
//! | capabilities | those that the policy does not name; no_new_privs keeps them from being regained |
//! | limits | core dumps, tracing by others, a share of the memory |
//!
//! States: open, confined, sealed; there is no way back. [`Policy::confine_files`] confines, [`Policy::seal`] seals, and
//! [`Policy::enter`] does both.
//!
//! Ordering: landlock and capabilities belong to a thread, and a new thread inherits them. So a process confines itself on
//! its only thread; threads that run already would stay outside. The filter of system calls is set for all threads at once, so
//! it may come later, after the process has made the rings, sockets and threads whose creation it refuses. Open descriptors stay
//! usable: the process opens the disks first, and reads their first byte when it is sealed.
//!
//! Invariants: a refused system call fails with EPERM and kills nothing. A wrong guess about the list must not end a daemon between
//! two writes; the caller gets an error like that of a full or missing disk, and reports it.
//!
//! Assumptions: io_uring executes operations that the filter does not see. So the caller has the kernel restrict its rings to the
//! operations that it needs (`ashlar_engine::restrict_rings`), and no new one can be made after sealing. A kernel without
//! landlock (before Linux 5.13, or where it is switched off) lets the process continue after one warning: the filter and the
//! dropped capabilities still protect.
//!
//! ```no_run
//! use ashlar_sandbox::{Policy, Sockets};
//!
//! # fn main() -> Result<(), ashlar_sandbox::SandboxError> {
//! let policy = Policy::new().write_below("/var/lib/ashlar").sockets(Sockets::Served);
//! policy.confine_files()?; // on the main thread, before any other starts
//! // ... rings, sockets, threads ...
//! policy.seal()?; // all threads
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod calls;
mod files;
mod process;

use std::io;
use std::path::{Path, PathBuf};

pub use rustix::thread::CapabilitySet;

/// What a process may still do in the sandbox.
#[derive(Clone, Debug)]
pub struct Policy {
    reads: Vec<PathBuf>,
    writes: Vec<PathBuf>,
    sockets: Sockets,
    keeps: CapabilitySet,
    changes: bool,
    owners: bool,
    times: bool,
    memory: Option<MemoryLimit>,
}

/// The memory that a process may take, including what it uses when it confines itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimit {
    /// Memory of its own that it can write to, bytes (RLIMIT_DATA).
    pub own_bytes: u64,
    /// All address space, bytes (RLIMIT_AS): each thread reserves some that it does not use.
    pub address_space_bytes: u64,
}

/// What a process may still do with sockets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sockets {
    /// Nothing.
    None,
    /// Accept connections on sockets that listen already, receive and send.
    Served,
    /// Also make Unix stream sockets that listen, below the writable directories; not connect.
    Listen,
    /// Also make stream sockets of any family, Unix and TCP, that listen or connect.
    Connect,
}

/// Why a process could not enter the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A path that the policy names cannot be opened.
    #[error("cannot name {} in the sandbox: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a step.
    #[error("cannot {step}: {why}")]
    Step {
        /// The step.
        step: &'static str,
        /// Why.
        why: String,
    },
}

impl SandboxError {
    fn step(step: &'static str, why: impl std::fmt::Display) -> Self {
        Self::Step { step, why: why.to_string() }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy {
    /// A policy that allows no file, no socket and no capability, and does not limit the memory.
    pub fn new() -> Self {
        Self {
            reads: Vec::new(),
            writes: Vec::new(),
            sockets: Sockets::None,
            keeps: CapabilitySet::empty(),
            changes: false,
            owners: false,
            times: false,
            memory: None,
        }
    }

    /// Allows reading of a file, or of all below a directory. The path must exist when the process confines itself.
    #[must_use]
    pub fn read_below(mut self, path: impl AsRef<Path>) -> Self {
        self.reads.push(path.as_ref().to_owned());
        self
    }

    /// As [`Self::read_below`], for those of these paths that exist now.
    #[must_use]
    pub fn read_present(self, paths: &[&str]) -> Self {
        let present = paths.iter().filter(|path| Path::new(path).exists());
        present.fold(self, Self::read_below)
    }

    /// Allows reading and writing of a file, or of all below a directory, where files, directories, links and sockets may be
    /// made, renamed and removed. The path must exist when the process confines itself.
    #[must_use]
    pub fn write_below(mut self, path: impl AsRef<Path>) -> Self {
        self.writes.push(path.as_ref().to_owned());
        self.changes(true)
    }

    /// Allows the calls that change directories and names; landlock alone then decides where: see [`Self::write_below`].
    /// Otherwise the calls themselves are refused.
    #[must_use]
    pub fn changes(mut self, allowed: bool) -> Self {
        self.changes = allowed;
        self
    }

    /// What may be done with sockets.
    #[must_use]
    pub fn sockets(mut self, sockets: Sockets) -> Self {
        self.sockets = sockets;
        self
    }

    /// Keeps these capabilities, as far as the process has them.
    #[must_use]
    pub fn keep(mut self, capabilities: CapabilitySet) -> Self {
        self.keeps |= capabilities;
        self
    }

    /// Allows changes of owners and of extended attributes by path, too. Landlock does not check these calls: a process
    /// that may make them may make them on all files. Modes, times, and the owners and attributes of open files, may be changed
    /// wherever something may be written; but no file gets a set-user-ID or set-group-ID bit without this.
    #[must_use]
    pub fn owners(mut self, allowed: bool) -> Self {
        self.owners = allowed;
        self
    }

    /// Allows changes of times by path, too, which landlock does not check: a symbolic link has no other way.
    #[must_use]
    pub fn times(mut self, allowed: bool) -> Self {
        self.times = allowed;
        self
    }

    /// Limits the memory, or not.
    #[must_use]
    pub fn memory(mut self, limit: Option<MemoryLimit>) -> Self {
        self.memory = limit;
        self
    }

    /// Confines the calling thread, and those that it starts from now on, to the named files and capabilities; switches core
    /// dumps and tracing off, and limits the memory. Call this on the only thread of the process.
    ///
    /// A kernel without landlock is not a failure: the sandbox logs one warning.
    ///
    /// # Errors
    /// A named path cannot be opened, or the kernel refused a step. Some steps may have been taken.
    pub fn confine_files(&self) -> Result<(), SandboxError> {
        process::no_new_privileges()?;
        process::forbid_dumps()?;
        if let Some(limit) = self.memory {
            process::limit_memory(limit)?;
        }
        files::confine(&self.reads, &self.writes, self.sockets)?;
        process::drop_capabilities(self.keeps)
    }

    /// Refuses all system calls that are not on the list, in all threads of the process.
    ///
    /// # Errors
    /// The kernel has no seccomp filters, or refused this one. Nothing changes then.
    pub fn seal(&self) -> Result<(), SandboxError> {
        calls::seal(self)
    }

    /// Both steps, for a process with one thread.
    ///
    /// # Errors
    /// As those of [`Self::confine_files`] and [`Self::seal`].
    pub fn enter(&self) -> Result<(), SandboxError> {
        self.confine_files()?;
        self.seal()
    }
}
