//! Reading a file sequentially as the kernel's page cache does it for `cat` (`mm/readahead.c`): windows that grow up to
//! a size. A window is requested when the reader reaches the first page of the window before it, so that one is in
//! flight while the reader waits for the other; each is submitted with its own plug.

use std::future::poll_fn;
use std::task::Poll;

use ashlar_block::{Gateway, Sector, Sectors, Status, plug};
use futures_util::future::maybe_done;

/// The first window (`read_ahead_kb`'s default).
const FIRST: Sectors = Sectors(256);
/// Each page of the file begins with its number, so that a page from the wrong place is detected.
pub(crate) const PAGE: u64 = 4096;

/// The windows of a read of `[start, start + len)`, none longer than `longest`.
pub(crate) fn windows(
    start: Sector,
    len: Sectors,
    longest: Sectors,
) -> impl Iterator<Item = (Sector, Sectors)> {
    let (mut at, mut left, mut size) = (start, len, FIRST.min(longest));
    std::iter::from_fn(move || {
        let window = (at, size.min(left));
        if left.is_zero() {
            return None;
        }
        at += window.1;
        left = Sectors(left.0 - window.1.0);
        size = Sectors(size.0 * 2).min(longest);
        Some(window)
    })
}

/// Reads a file that begins at `start`, and checks each page's number.
///
/// # Errors
/// A read failed; `Protection` if the data are wrong.
pub(crate) async fn read(
    volume: &Gateway,
    start: Sector,
    len: Sectors,
    longest: Sectors,
) -> Result<(), Status> {
    let mut windows = windows(start, len, longest);
    let mut begin = async || {
        let (at, len) = windows.next()?;
        let mut read = Box::pin(maybe_done(volume.read(at, len)));
        poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_ready())).await;
        plug::flush_current();
        Some((at, read))
    };
    let mut current = begin().await;
    // The first window is read before the reader is known to be sequential.
    if let Some((_, read)) = &mut current {
        read.await;
    }
    let mut next = begin().await;
    while let Some((at, mut read)) = current {
        (&mut read).await;
        let data = read.as_mut().take_output().ok_or(Status::Io)??;
        let first = (at - start).bytes() / PAGE;
        let pages = data.as_slice().chunks(PAGE as usize);
        if !pages.zip(first..).all(|(page, number)| page.starts_with(&number.to_le_bytes())) {
            return Err(Status::Protection);
        }
        current = next;
        next = begin().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_to_their_size_and_cover_everything_once() {
        for (len, longest) in [(1 << 20, 512), (1 << 20, 2048), (1000, 512), (8, 512), (5000, 8)] {
            let mut at = Sector(64);
            let mut last = Sectors::ZERO;
            for (start, size) in windows(at, Sectors(len), Sectors(longest)) {
                assert_eq!(start, at);
                let is_tail = start + size == Sector(64 + len);
                assert!(size.0 <= longest && (size >= last || is_tail) && !size.is_zero());
                (at, last) = (start + size, size);
            }
            assert_eq!(at, Sector(64 + len));
        }
        let first: Vec<u64> =
            windows(Sector(0), Sectors(8192), Sectors(2048)).map(|(_, len)| len.0).collect();
        assert_eq!(first, [256, 512, 1024, 2048, 2048, 2048, 256]);
    }
}
