//! Moves of extents on disks that no daemon serves.

use std::time::Duration;

use ashlar_engine::signal::{self, Signal};
use ashlar_engine::sleep;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::group::Group;
use ashlar_stack::volume_groups::mirror_progress;
use futures_util::future::{Either, select};

use super::archive::Archives;
use super::groups::not_found;
use super::session::Session;
use crate::error::{Error, Result};

/// How often the progress is read.
const POLL: Duration = Duration::from_millis(100);
/// The signals that interrupt moves and merges.
pub const SIGNALS: [Signal; 2] = [Signal::INT, Signal::TERM];

/// Blocks [`SIGNALS`], so that [`Session::carry_on`] and merges can wait for them. The caller has started no thread yet.
///
/// # Errors
/// That of the system call.
pub fn block_signals() -> Result<()> {
    signal::block(&SIGNALS).map_err(|error| Error::plain("cannot block signals", error))
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveProgress<'a> {
    /// The path of the physical volume that is being emptied.
    pub source: &'a str,
    /// The extents that have moved.
    pub moved: u64,
    /// All of its extents.
    pub total: u64,
}

/// Called with the progress of a move about ten times a second, and when it has ended.
pub type MoveObserver<'a> = &'a mut dyn FnMut(MoveProgress<'_>) -> Result<()>;

impl Session {
    /// The names of the groups in which extents are being moved, all or from the physical volume at this path.
    ///
    /// # Errors
    /// There is no such physical volume.
    pub fn moving_groups(&self, from: Option<&str>) -> Result<Vec<String>> {
        let from = from.map(|path| self.pv(path).ok_or_else(|| not_found(path))).transpose()?;
        let meant = self.found.groups.iter().filter(|group| {
            let is_source = |index: usize| group.members.get(index)?.usable();
            let mut sources =
                group.metadata.group.moves().filter_map(|moving| is_source(moving.source()?));
            sources.any(|index| from.is_none_or(|from| from == index))
        });
        Ok(meant.map(|group| group.metadata.group.name.clone()).collect())
    }

    /// The group of the physical volume at this path.
    ///
    /// # Errors
    /// There is no such physical volume, or it is not in a group.
    pub fn group_at(&self, path: &str) -> Result<&Group> {
        let group = self.pv(path).and_then(|index| self.group_of(index));
        group.ok_or_else(|| not_found(path))
    }

    /// Copies what is left of a group's moves, and records piece by piece that the new place counts. SIGINT and SIGTERM, which
    /// [`block_signals`] has blocked, interrupt it.
    ///
    /// # Errors
    /// It was interrupted, or a disk has failed: another call continues it.
    pub async fn carry_on(
        &mut self,
        group: &str,
        archives: &Archives,
        observer: MoveObserver<'_>,
    ) -> Result<()> {
        while self.carry_piece(group, archives, observer).await? {}
        Ok(())
    }

    /// Copies a piece; false if no piece is left.
    async fn carry_piece(
        &mut self,
        group: &str,
        archives: &Archives,
        observer: MoveObserver<'_>,
    ) -> Result<bool> {
        let mut draft = self.draft(group).await?;
        let vg = &draft.group;
        let Some((moving, running)) = vg.moves().find_map(|it| Some((it, it.running()?))) else {
            return Ok(false);
        };
        let (name, device) = (moving.name().to_owned(), dm_name(&vg.name, moving.name(), None));
        let source = moving.source().and_then(|index| draft.members.get(index));
        let source = source.and_then(|index| self.pvs.get(*index));
        let source = source.map_or_else(String::new, |pv| pv.path.clone());
        let (moved, total) = (u64::from(moving.moved()), u64::from(moving.extents()));
        let (piece, at) = (running.segment().count, running.segment().start);
        let at = vg.sectors(at).as_end();
        let mut volumes = self.volumes(vg, &draft.members);
        volumes.make(std::slice::from_ref(&device)).await?;
        let copied = async {
            let Some(made) = volumes.device(&device) else { return Ok(()) };
            let mut interrupted = Box::pin(signal::wait(&SIGNALS));
            loop {
                let status = made.status();
                let progress = status.lines().find_map(mirror_progress);
                let progress = progress.filter(|progress| progress.is_alive);
                let failed = made.message(at, &["has_failed"]).await;
                let Some(progress) = progress.filter(|_| failed.as_deref() == Ok("0")) else {
                    return Err(Error::new("The move cannot continue", &name, status.trim())
                        .hint("cancel it with ashlar lvm pvmove --abort"));
                };
                if progress.is_synced() {
                    let verified = made.message(at, &["verify"]).await;
                    verified.map_err(|why| Error::new("The move cannot continue", &name, why))?;
                    return Ok(());
                }
                let moved = moved + progress.of(piece.into());
                observer(MoveProgress { source: &source, moved, total })?;
                let pause = Box::pin(sleep(POLL));
                if let Either::Right((ended, _)) = select(pause, interrupted.as_mut()).await {
                    ended.map_err(|error| Error::plain("cannot wait for signals", error))?;
                    let text = format!("The move of {source} was interrupted");
                    let hint = "continue it with ashlar lvm pvmove, or cancel it with --abort";
                    return Err(Error::failed(text).hint(hint));
                }
            }
        };
        let copied = copied.await;
        let ended = volumes.end().await;
        copied.and(ended)?;
        let advanced = draft.group.advance_move(&name);
        advanced.map_err(|error| Error::new("The move cannot continue", &name, error))?;
        self.commit(draft, &[], archives).await?;
        let moved = moved + u64::from(piece);
        if moved == total {
            observer(MoveProgress { source: &source, moved, total })?;
        }
        Ok(true)
    }
}
