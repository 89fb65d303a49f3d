//! User changes of the array's state and of bad blocks (`md/array_state`, `md/dev-*/bad_blocks`).

use std::time::Duration;

use tracing::info;

use super::ManageError;
use crate::array::Array;
use crate::badblocks as bad;
use crate::membership::slots::Index;

/// The interval for checking whether the writes in flight have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Array {
    /// Does what the kernel does when `word` is written to `array_state`. `readonly`: refuses writes, runs no sync, and
    /// marks the superblocks clean. `read-auto`: the same, but the first write makes the array active. `active`: allows
    /// writes and continues syncs. `clean`: the same, and marks the superblocks clean at once. The words that end the
    /// array (`clear`, `inactive`) are refused here: see [`Array::stop`].
    ///
    /// # Errors
    /// [`ManageError::State`] for another word, [`ManageError::Writing`] if writes under way keep the array from being
    /// clean, [`ManageError::ReadOnly`] if its members cannot be written.
    pub async fn set_state(&self, word: &str) -> Result<(), ManageError> {
        let word = word.trim_end_matches('\n').to_owned();
        self.change(move |array| async move { array.set_state_now(&word).await }).await
    }

    async fn set_state_now(&self, word: &str) -> Result<(), ManageError> {
        if self.is_stopped() {
            return Err(ManageError::Stopped(self.name()));
        }
        match word {
            "readonly" if !self.core.is_writable() => Ok(()),
            "read-auto" | "active" | "clean" if !self.core.is_writable() => {
                Err(ManageError::ReadOnly(self.name()))
            }
            "readonly" => self.make_read_only().await,
            "read-auto" => self.make_auto_read_only().await,
            "active" => {
                self.make_writable();
                Ok(())
            }
            "clean" => {
                self.make_writable();
                if self.core.is_redundant() && !self.clean_for_user().await? {
                    return Err(ManageError::Writing(self.name()));
                }
                Ok(())
            }
            _ => Err(ManageError::State { array: self.name(), word: word.to_owned() }),
        }?;
        info!(array = self.core.name(), word, "state set");
        Ok(())
    }

    async fn clean_for_user(&self) -> Result<bool, ManageError> {
        self.core.go_clean().await.map_err(|status| self.not_recorded(status))
    }

    async fn make_read_only(&self) -> Result<(), ManageError> {
        self.core.disk.set_read_only(true);
        self.core.lifecycle.set_auto_read_only(false);
        drop(self.sync.hold().await);
        while self.core.is_redundant() && !self.clean_for_user().await? {
            // New writes are refused, so those in flight end.
            self.core.runtime.sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn make_auto_read_only(&self) -> Result<(), ManageError> {
        let _held = self.sync.hold().await;
        while !self.core.go_auto_read_only().await.map_err(|status| self.not_recorded(status))? {
            if !self.core.disk.is_read_only() {
                return Err(ManageError::Writing(self.name()));
            }
            self.core.runtime.sleep(LOOK_AGAIN).await;
        }
        // Only now, so that the next write finds the array auto-read-only.
        self.core.disk.set_read_only(false);
        Ok(())
    }

    fn make_writable(&self) {
        self.core.disk.set_read_only(false);
        self.core.lifecycle.set_auto_read_only(false);
        self.core.sync_wakeup.wake();
    }

    /// Marks the sectors of a line of `bad_blocks` as bad. The superblocks contain them when this returns.
    ///
    /// # Errors
    /// [`ManageError::BadBlocks`] if the line is invalid or the member has no room for it.
    pub async fn add_bad_blocks(&self, index: Index, line: &str) -> Result<(), ManageError> {
        let line = line.to_owned();
        self.change(move |array| async move { array.add_bad_blocks_now(index, &line).await }).await
    }

    async fn add_bad_blocks_now(&self, index: Index, line: &str) -> Result<(), ManageError> {
        let mut superblocks = self.superblocks_to_change().await?;
        self.check_recordable(&superblocks)?;
        let rdev = self.member(index)?;
        let refused = |why: String| ManageError::BadBlocks { path: rdev.path().to_owned(), why };
        let (start, len) = match bad::Change::parse(line) {
            Ok(bad::Change::Set { start, len }) => (start, len),
            // Nothing shows that the sectors hold the right data.
            Ok(bad::Change::Clear { .. }) => {
                return Err(refused("only a write makes a bad block good again".to_owned()));
            }
            Err(why) => return Err(refused(why.to_string())),
        };
        let data = rdev.data_offset().as_end()..(rdev.data_offset() + rdev.data_size()).as_end();
        if start < data.start || start + len > data.end {
            let why = format!("its data are in sectors {} to {}", data.start, data.end);
            return Err(refused(why));
        }
        rdev.bad_blocks().set(start, len).map_err(|why| refused(why.to_string()))?;
        self.record(&mut superblocks).await
    }
}
