//! Output that may be large. A reader that closes the pipe ends it; this is not an error.

use std::io::{self, BufWriter, StdoutLock, Write};

use ashlar_control::error::{Error, Result};

use crate::visible;

/// Standard output with a large buffer.
pub fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(256 << 10, io::stdout().lock())
}

/// As [`output`], for text with names that come from disks: as with [`print`](crate::print) no control character but newlines and tabs
/// reaches a terminal, nor does a byte that is a control character in an eight-bit encoding. Other bytes that are not UTF-8
/// stay, as in the output of btrfs-progs.
pub fn text_output() -> VisibleText<BufWriter<StdoutLock<'static>>> {
    VisibleText(output())
}

/// Escapes what [`text_output`] says. The caller must not split a character between two writes.
pub struct VisibleText<W>(W);

impl<W: Write> Write for VisibleText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for chunk in bytes.utf8_chunks() {
            self.0.write_all(visible(chunk.valid()).as_bytes())?;
            for byte in chunk.invalid() {
                match byte {
                    0x80..=0x9f => write!(self.0, "\\x{byte:02x}")?,
                    _ => self.0.write_all(&[*byte])?,
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Why output ended early.
#[derive(Debug)]
pub enum BulkError {
    /// Its reader has closed the pipe.
    Gone,
    /// It cannot be written, or its source failed.
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

/// Maps the error of a write to standard output: a reader that has closed the pipe is not an error.
///
/// # Errors
/// The output cannot be written for another reason.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_large_outputs_are_no_commands_to_the_terminal() {
        let mut text = VisibleText(Vec::new());
        text.write_all("\tname: caf\u{e9} \u{1b}[2J\u{7f}\u{9b}1m\n".as_bytes()).unwrap();
        text.write_all(b"\x9b\xff\r").unwrap();
        let mut expected =
            "\tname: caf\u{e9} \\u001b[2J\\u007f\\u009b1m\n\\x9b".as_bytes().to_vec();
        expected.extend(b"\xff\\u000d");
        assert_eq!(text.0, expected);
    }
}
