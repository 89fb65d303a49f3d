//! The write-intent bitmap: `md/bitmap/`, or `md/llbitmap/` of a lockless one.

use std::sync::Arc;

use ashlar_md::bitmap::{Bitmap, Kind};
use ashlar_md::ondisk::create::NewBitmap;

use crate::attributes::{AttributeError, Row, Tree};
use crate::view::ArrayView;

/// The type in use, as the kernel marks it.
const TYPE: &[Row<ArrayView>] = &[Row::ro("bitmap_type", |view| {
    let kind = view.array().bitmap().map(Bitmap::kind);
    let types =
        [("none", None), ("bitmap", Some(Kind::Classic)), ("llbitmap", Some(Kind::Lockless))];
    let mark = |(name, of): (&str, Option<Kind>)| {
        if of == kind { format!("[{name}] ") } else { format!("{name} ") }
    };
    types.map(mark).concat()
})];

/// Of arrays without a lockless bitmap.
const CLASSIC: &[Row<ArrayView>] = &[
    Row::ro("bitmap/backlog", |view| of(view, |b| b.superblock().write_behind.to_string(), "0")),
    Row::ro("bitmap/can_clear", |view| {
        let clear = view.status().degraded == 0;
        of(view, |_| clear.to_string(), "")
    }),
    Row::ro("bitmap/chunksize", |view| of(view, |b| b.chunk().bytes().to_string(), "0")),
    Row::act("bitmap/location", location, |view, text| {
        Box::pin(async move {
            // Where it would be is not for the user to choose, as the kernel has it.
            if text != "none" {
                let why = "only `none` can be written; ashlar md grow --bitmap adds one";
                return Err(AttributeError::Invalid(why.to_owned()));
            }
            Ok(view.array().set_bitmap(NewBitmap::None).await?)
        })
    }),
    Row::ro("bitmap/metadata", |_| "internal".to_owned()),
    Row::ro("bitmap/time_base", |view| of(view, |b| b.daemon_sleep().as_secs().to_string(), "5")),
];

/// Of arrays with a lockless bitmap.
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
        Some(offset) if view.array().bitmap().is_some() => format!("{offset:+}"),
        Some(_) | None => "none".to_owned(),
    }
}

/// A text of the bitmap, or `none` without one.
fn of(view: &ArrayView, text: impl FnOnce(&Bitmap) -> String, none: &str) -> String {
    view.array().bitmap().map_or_else(|| none.to_owned(), text)
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
        kind: Option<Kind>,
    ) {
        self.add_rows(directory, view, TYPE);
        let rows = match kind {
            Some(Kind::Lockless) => LOCKLESS,
            Some(Kind::Classic) | None => CLASSIC,
        };
        self.add_rows(directory, view, rows);
    }
}
