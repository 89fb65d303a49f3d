//! Output that may be large. A reader that goes away ends it, and is no error.

use std::io::{self, BufWriter, StdoutLock, Write};

use ashlar_host::error::{Error, Result};

/// Standard output with a large buffer.
pub fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(256 << 10, io::stdout().lock())
}

/// Why output ended early.
#[derive(Debug)]
pub enum BulkError {
    /// Its reader has gone away.
    Gone,
    /// It cannot be written, or there is no more of it.
    Failed(Error),
}

impl From<Error> for BulkError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Standard output failed.
impl From<io::Error> for BulkError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Gone
        } else {
            Self::Failed(Error::plain("cannot write the output", error))
        }
    }
}

/// Maps the error of a write to standard output: a reader that has gone away is no error.
///
/// # Errors
/// The output cannot be written otherwise.
pub fn written(result: io::Result<()>) -> Result<()> {
    match result.map_err(BulkError::from) {
        Ok(()) | Err(BulkError::Gone) => Ok(()),
        Err(BulkError::Failed(error)) => Err(error),
    }
}

/// Writes `len` zeroes.
///
/// # Errors
/// Those of the output.
pub fn zeroes(out: &mut impl Write, mut len: u64) -> io::Result<()> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    while len > 0 {
        let part = len.min(ZEROES.len() as u64);
        out.write_all(&ZEROES[..part as usize])?;
        len -= part;
    }
    Ok(())
}
