//! Flags of members (`md/dev-*/state` in sysfs).

use futures_util::future::OptionFuture;

use super::ManageError;
use crate::array::Array;
use crate::membership::rdev::State;
use crate::membership::slots::{Index, Place};

/// A flag of a member that a user may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberFlag {
    /// Write-mostly: it is read only if no other in-sync member has the block.
    WriteMostly,
    /// It fails at the first error.
    Failfast,
    /// It should be replaced.
    WantReplacement,
    /// It had a write error.
    WriteError,
}

/// A flag to set or clear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlagChange {
    /// The flag.
    pub flag: MemberFlag,
    /// Whether to set it.
    pub on: bool,
}

impl FlagChange {
    /// The change for a word of sysfs, such as `-writemostly`.
    pub fn from_word(word: &str) -> Option<Self> {
        let (word, on) = word.strip_prefix('-').map_or((word, true), |word| (word, false));
        let flag = match word {
            "writemostly" => MemberFlag::WriteMostly,
            "failfast" => MemberFlag::Failfast,
            "want_replacement" => MemberFlag::WantReplacement,
            "write_error" => MemberFlag::WriteError,
            _ => return None,
        };
        Some(Self { flag, on })
    }
}

impl Array {
    /// Sets or clears a flag of a member. Setting [`MemberFlag::WantReplacement`] on a member that
    /// cannot be replaced is ignored, as in the kernel.
    ///
    /// # Errors
    /// [`ManageError`].
    pub async fn set_flag(&self, index: Index, change: FlagChange) -> Result<(), ManageError> {
        self.change(move |array| async move { array.set_flag_now(index, change).await }).await
    }

    async fn set_flag_now(&self, index: Index, change: FlagChange) -> Result<(), ManageError> {
        self.check_manageable()?;
        // So no write-behind is pending on a member that becomes readable, and each write sees one
        // value of the flag.
        let frozen = (change.flag == MemberFlag::WriteMostly).then(|| self.core.barrier.freeze());
        let _frozen = OptionFuture::from(frozen).await;
        let mut superblocks = self.superblocks_to_change().await?;
        let rdev = self.member(index)?;
        let (state, on_disk) = match change.flag {
            MemberFlag::WriteMostly => (State::WRITE_MOSTLY, true),
            MemberFlag::Failfast => (State::FAILFAST, true),
            MemberFlag::WantReplacement => (State::WANT_REPLACEMENT, false),
            MemberFlag::WriteError => (State::WRITE_ERROR, false),
        };
        if on_disk {
            self.check_recordable(&superblocks)?;
        }
        let replaceable = matches!(self.core.members.place(index), Place::Slot(_));
        if change.flag == MemberFlag::WantReplacement && change.on && !replaceable {
            return Ok(());
        }
        let before = if change.on { rdev.set(state) } else { rdev.clear(state) };
        if on_disk && before.contains(state) != change.on {
            self.record(&mut superblocks).await?;
        }
        drop(superblocks);
        if change.flag == MemberFlag::WantReplacement {
            self.core.sync_wakeup.wake();
        }
        Ok(())
    }

    /// Does what the kernel does when the word is written to the member's `state`: `faulty`, `remove`,
    /// `re-add`, the flags of [`FlagChange::from_word`], and `in_sync` and `-blocked`, which change
    /// nothing.
    ///
    /// # Errors
    /// [`ManageError::Word`] for another word, or one that does not apply to this member.
    pub async fn set_member_state(&self, index: Index, word: &str) -> Result<(), ManageError> {
        let word = word.trim_end_matches('\n');
        match word {
            "faulty" => self.fail(index).await,
            "remove" => self.remove(index).await,
            "re-add" => self.re_add_in_place(index).await.map(|_| ()),
            "-blocked" => self.member(index).map(|_| ()),
            "in_sync" | "insync" if self.member(index)?.is_in_sync() => Ok(()),
            _ => match FlagChange::from_word(word) {
                Some(change) => self.set_flag(index, change).await,
                None => Err(ManageError::Word(word.to_owned())),
            },
        }
    }
}
