//! The write-intent bitmap: `md/bitmap/`, or `md/llbitmap/` for a lockless one.

use std::sync::Arc;

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{Bitmap, BitmapKind};
use ashlar_stack::view::ArrayView;

use crate::attributes::{AttributeError, Row, Tree, number};

/// The bitmap types; brackets mark the one in use, as in the kernel.
const TYPE: &[Row<ArrayView>] = &[Row::ro("bitmap_type", |view| {
    let kind = view.bitmap().map(Bitmap::kind);
    let types = [
        ("none", None),
        ("bitmap", Some(BitmapKind::Classic)),
        ("llbitmap", Some(BitmapKind::Lockless)),
    ];
    let mark = |(name, of): (&str, Option<BitmapKind>)| {
        if of == kind { format!("[{name}] ") } else { format!("{name} ") }
    };
    types.map(mark).concat()
})];

const NO_BITMAP: &str = "the array has no bitmap";

/// Marks chunks by hand: any number of `NUMBER` and `FIRST-LAST`.
const SET_BITS: &[Row<ArrayView>] = &[Row::wo("bitmap_set_bits", |view, text| {
    Box::pin(async move {
        let invalid = |why: &str| AttributeError::Invalid(why.to_owned());
        let bitmap = view.bitmap().ok_or_else(|| invalid(NO_BITMAP))?;
        if view.is_read_only() {
            return Err(invalid("the array is read-only"));
        }
        let chunks = chunks(text, bitmap.chunks())?;
        for (first, last) in chunks {
            let start = Sector(u64::from(first) * bitmap.chunk().0);
            let end = ((u64::from(last) + 1) * bitmap.chunk().0).min(bitmap.size().0);
            // A failed write leaves its chunks marked until a sync.
            let marked = view.mark(start, Sectors(end) - Sectors(start.0)).await;
            marked.map_err(|status| {
                AttributeError::Busy(format!("the bitmap is not in use: {status}"))
            })?;
        }
        Ok(())
    })
})];

/// The ranges of chunks in a text, as first and last, all below `count`.
fn chunks(text: &str, count: u32) -> Result<Vec<(u32, u32)>, AttributeError> {
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (number::<u64>(first)?, number::<u64>(last)?);
        let fits = first <= last && last < u64::from(count);
        let why = || AttributeError::Invalid(format!("`{word}`: there are {count} chunks"));
        fits.then_some((first as u32, last as u32)).ok_or_else(why)
    };
    text.split_ascii_whitespace().map(range).collect()
}

/// Attributes of arrays without a lockless bitmap.
const CLASSIC: &[Row<ArrayView>] = &[
    Row::ro("bitmap/backlog", |view| of(view, |b| b.superblock().write_behind.to_string(), "0")),
    Row::ro("bitmap/can_clear", |view| {
        let clear = view.status().degraded == 0;
        of(view, |_| clear.to_string(), "")
    }),
    Row::ro("bitmap/chunksize", |view| of(view, |b| b.chunk().bytes().to_string(), "0")),
    Row::change("bitmap/location", location, |view, text, turn| {
        Box::pin(async move {
            // Unlike in the kernel, the user cannot choose an offset for the bitmap.
            if text != "none" {
                let why = "only `none` can be written; add a bitmap with ashlar md grow --bitmap";
                return Err(AttributeError::Invalid(why.to_owned()));
            }
            Ok(view.set_bitmap(&turn, NewBitmap::None).await?)
        })
    }),
    Row::ro("bitmap/metadata", |_| "internal".to_owned()),
    Row::ro("bitmap/space", |view| {
        of(view, |b| b.superblock().sectors_reserved.get().to_string(), "0")
    }),
    Row::rw(
        "bitmap/time_base",
        |view| of(view, |b| b.daemon_sleep().as_secs().to_string(), "5"),
        |view, text| {
            let invalid = |why: String| AttributeError::Invalid(why);
            let bitmap = view.bitmap().ok_or_else(|| invalid(NO_BITMAP.to_owned()))?;
            bitmap.set_daemon_sleep(number(text)?).map_err(|error| invalid(error.to_string()))
        },
    ),
];

/// Attributes of arrays with a lockless bitmap.
const LOCKLESS: &[Row<ArrayView>] = &[
    Row::ro("llbitmap/bits", |view| of(view, Bitmap::states, "no bitmap")),
    Row::ro("llbitmap/daemon_sleep", |view| {
        of(view, |b| b.daemon_sleep().as_secs().to_string(), "5")
    }),
    Row::ro("llbitmap/metadata", |view| {
        let offset = view.status().bitmap_offset.unwrap_or_default();
        of(view, |b| metadata(b, offset), "no bitmap")
    }),
];

fn location(view: &ArrayView) -> String {
    match view.status().bitmap_offset {
        Some(offset) if view.bitmap().is_some() => format!("{offset:+}"),
        Some(_) | None => "none".to_owned(),
    }
}

/// The text of the bitmap, or `none` if there is no bitmap.
fn of(view: &ArrayView, text: impl FnOnce(&Bitmap) -> String, none: &str) -> String {
    view.bitmap().map_or_else(|| none.to_owned(), text)
}

fn metadata(bitmap: &Bitmap, offset: i32) -> String {
    let chunk = bitmap.chunk().0;
    format!(
        "chunksize {chunk}\nchunkshift {}\nchunks {}\noffset {offset}\ndaemon_sleep {}\n",
        chunk.trailing_zeros(),
        bitmap.chunks(),
        bitmap.daemon_sleep().as_secs(),
    )
}

impl Tree {
    /// Adds the attributes of a bitmap of this kind to `directory`.
    pub(super) fn add_bitmap(
        &mut self,
        directory: &str,
        view: &Arc<ArrayView>,
        kind: Option<BitmapKind>,
    ) {
        self.add_rows(directory, view, TYPE);
        self.add_rows(directory, view, SET_BITS);
        let rows = match kind {
            Some(BitmapKind::Lockless) => LOCKLESS,
            Some(BitmapKind::Classic) | None => CLASSIC,
        };
        self.add_rows(directory, view, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_numbers_and_ranges() {
        assert_eq!(chunks("", 4), Ok(Vec::new()));
        assert_eq!(chunks("0 2-3\t1", 4), Ok(vec![(0, 0), (2, 3), (1, 1)]));
        for bad in ["4", "2-4", "3-2", "-1", "1-", "x", "1,2", "18446744073709551616"] {
            assert_eq!(chunks(bad, 4).unwrap_err().errno(), 22, "{bad}");
        }
    }
}
