//! Times, in UTC.

use std::fmt;

use ashlar_files::utc;

use crate::ondisk::items::Timespec;

/// A time as btrfs-progs writes it: seconds since 1970, a point and nanoseconds without leading
/// zeroes; then date and time.
pub(super) struct Time<'a>(pub(super) &'a Timespec);

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sec, nsec) = (self.0.sec.get(), self.0.nsec.get());
        write!(f, "{sec}.{nsec} ({})", utc(sec as i64))
    }
}
