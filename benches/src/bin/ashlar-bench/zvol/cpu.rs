//! Processor time of processes.

use std::fs;
use std::ops::{Add, Sub};

use ashlar_commands::error::{Error, Result};

/// Ticks per second in /proc: `USER_HZ`, the same on every machine that ashlar runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processor time of a process, in seconds.
#[derive(Clone, Copy, Default)]
pub(super) struct CpuTime {
    pub(super) system: f64,
    pub(super) user: f64,
}

impl CpuTime {
    /// The time that all threads of process `pid` have used so far (proc_pid_stat(5)).
    ///
    /// # Errors
    /// There is no such process.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path);
        let stat = stat.map_err(|error| Error::new("cannot read", &path, error))?;
        // The name, in parentheses, may contain any characters.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let seconds = |index: usize| {
            let ticks = fields.get(index).and_then(|field| field.parse::<f64>().ok());
            ticks.unwrap_or(f64::NAN) / TICKS_PER_SECOND
        };
        // Fields 14 and 15; the first field after the name is field 3.
        Ok(Self { user: seconds(11), system: seconds(12) })
    }
}

impl Add for CpuTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { system: self.system + other.system, user: self.user + other.user }
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { system: self.system - other.system, user: self.user - other.user }
    }
}
