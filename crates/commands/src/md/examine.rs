//! The superblocks on disks, in mdadm's words.

use ashlar_md::ondisk::Superblock;
use ashlar_md::ondisk::brief::{self, Brief};
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::Md;
use ashlar_view::examine::{self, ExaminedPlace, ExaminedSuperblock};

use super::hostname;
use crate::error::{Error, Result};

/// What to report about superblocks, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExamineForm {
    /// All of them.
    Text,
    /// A line for each array.
    Brief {
        /// With its level and devices.
        verbose: bool,
    },
    /// Variables for scripts.
    Export,
    /// Their bitmaps.
    Bitmaps,
    /// Their bad blocks.
    BadBlocks,
}

/// What was found on disks.
#[derive(Default)]
pub struct Examination {
    /// The text.
    pub text: String,
    /// The superblocks, but for the forms of bitmaps and bad blocks.
    pub superblocks: Vec<ExaminedSuperblock>,
}

/// Reads the superblocks on disks and their partitions. Calls `fail` for disks without one or with a damaged one;
/// without `fail`, skips these and unreadable disks.
///
/// # Errors
/// A disk, or a bad block log, cannot be read.
pub async fn examine(
    disks: Vec<Disk>,
    form: ExamineForm,
    mut fail: Option<&mut dyn FnMut(Error)>,
) -> Result<Examination> {
    let homehost = hostname();
    let mut text = String::new();
    let mut all: Vec<(Box<Superblock>, String)> = Vec::new();
    for disk in disks {
        let path = disk.path.display().to_string();
        let found = match examine::examine(path, disk.gateway).await {
            Ok(found) => found,
            Err(_) if fail.is_none() => continue,
            Err(error) => return Err(Error::failed(error)),
        };
        if form == ExamineForm::Text {
            text += &found.table;
        }
        for place in found.places {
            let failure = match &place.md {
                Md::Member(sb) => match describe(&place, sb, form, homehost.as_deref()).await? {
                    Ok(described) => {
                        text += &described;
                        if !matches!(form, ExamineForm::Bitmaps | ExamineForm::BadBlocks) {
                            all.push((sb.clone(), place.path));
                        }
                        continue;
                    }
                    Err(why) => Error::new("no bitmap", &place.path, why),
                },
                Md::Damaged(error) => Error::new("damaged md superblock", &place.path, error),
                // mdadm prints nothing for them in this case.
                Md::None if matches!(form, ExamineForm::Brief { .. }) => continue,
                Md::None => match &place.describes {
                    Some(found) => Error::new("no md superblock", &place.path, found),
                    None => Error::plain("no md superblock", &place.path),
                },
            };
            if let Some(fail) = &mut fail {
                fail(failure);
            }
        }
    }
    if let ExamineForm::Brief { verbose } = form {
        let arrays = Brief::all(all.iter().map(|(sb, path)| (&**sb, path.as_str())));
        text = arrays.iter().map(|array| array.lines(verbose)).collect();
    }
    let superblocks = all.into_iter().map(|(sb, path)| ExaminedSuperblock::new(path, &sb));
    Ok(Examination { text, superblocks: superblocks.collect() })
}

/// The report about the superblock `sb` at a place, or why it has no bitmap.
async fn describe(
    place: &ExaminedPlace,
    sb: &Superblock,
    form: ExamineForm,
    homehost: Option<&str>,
) -> Result<std::result::Result<String, String>> {
    Ok(match form {
        ExamineForm::Text => Ok(place.superblock_text(sb, homehost).await),
        ExamineForm::Brief { .. } => Ok(String::new()),
        ExamineForm::Export => Ok(brief::export(sb)),
        ExamineForm::Bitmaps => place.bitmap_text(sb).await,
        ExamineForm::BadBlocks => Ok(place.bad_blocks_text(sb).await.map_err(Error::failed)?),
    })
}
