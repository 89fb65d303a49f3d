//! Words in the lists `status` and `flags`.
//!
//! LVM refuses a group with a word in `status` that it does not know, and passes over those in `flags`. Here
//! unknown words of both are kept; see [`FlagSet::unknown_status`].

use std::fmt;

/// A word of one of the two lists.
pub trait Flag: Clone + PartialEq + fmt::Debug + Sized + 'static {
    /// The known words in LVM's order, with the list they are written to.
    const KNOWN: &'static [(Self, &'static str, List)];
    /// The flag of a word that is not known.
    fn other(word: &str) -> Self;
    /// The word, if it is not known.
    fn as_other(&self) -> Option<&str>;
}

/// Which of the two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// `status`: who does not know a word must not use the thing.
    Status,
    /// `flags`: who does not know a word may go on.
    Flags,
}

/// The flags of a group, a physical volume or a logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlagSet<F> {
    pub(super) status: Vec<F>,
    /// `None`: the list is not there (old versions).
    pub(super) flags: Option<Vec<F>>,
}

impl<F: Flag> FlagSet<F> {
    /// A set of these.
    pub fn new(flags: impl IntoIterator<Item = F>) -> Self {
        let mut set = Self { status: Vec::new(), flags: Some(Vec::new()) };
        for flag in flags {
            set.insert(flag);
        }
        set
    }

    /// Whether it is set, in either list.
    pub fn contains(&self, flag: &F) -> bool {
        self.iter().any(|set| set == flag)
    }

    /// All of them, `status` first.
    pub fn iter(&self) -> impl Iterator<Item = &F> {
        self.status.iter().chain(self.flags.iter().flatten())
    }

    /// Sets it, in the list it belongs to.
    pub fn insert(&mut self, flag: F) {
        if self.contains(&flag) {
            return;
        }
        let rank = |flag: &F| F::KNOWN.iter().position(|(known, ..)| known == flag);
        let own = rank(&flag);
        let list = match own.map(|rank| F::KNOWN[rank].2) {
            Some(List::Flags) => self.flags.get_or_insert_default(),
            Some(List::Status) | None => &mut self.status,
        };
        let at = list.iter().position(|set| own.is_some() && rank(set) > own);
        list.insert(at.unwrap_or(list.len()), flag);
    }

    /// Clears it, in both lists.
    pub fn remove(&mut self, flag: &F) {
        self.status.retain(|set| set != flag);
        if let Some(flags) = &mut self.flags {
            flags.retain(|set| set != flag);
        }
    }

    /// The first word in `status` that is not known. What has it must not be used or changed.
    pub fn unknown_status(&self) -> Option<&str> {
        self.status.iter().find_map(Flag::as_other)
    }

    pub(super) fn word(flag: &F) -> &str {
        let known = F::KNOWN.iter().find(|(known, ..)| known == flag).map(|(_, word, _)| *word);
        known.or_else(|| flag.as_other()).unwrap_or_default()
    }

    pub(super) fn parse(word: &str) -> F {
        let known = F::KNOWN.iter().find(|(_, known, _)| *known == word);
        known.map_or_else(|| F::other(word), |(flag, ..)| flag.clone())
    }
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal in $list:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// A word that is not known here.
            Other(String),
        }

        impl Flag for $name {
            const KNOWN: &'static [(Self, &'static str, List)] =
                &[$((Self::$variant, $word, List::$list),)+];

            fn other(word: &str) -> Self {
                Self::Other(word.into())
            }

            fn as_other(&self) -> Option<&str> {
                match self {
                    Self::Other(word) => Some(word),
                    $(Self::$variant)|+ => None,
                }
            }
        }
    };
}

flags! {
    /// Flags of a volume group (`_vg_flags` in `lib/format_text/flags.c`).
    VgFlag {
        /// Belongs to another host.
        Exported = "EXPORTED" in Status,
        /// Physical volumes may come and go.
        Resizeable = "RESIZEABLE" in Status,
        /// Extents are being moved.
        PvMove = "PVMOVE" in Status,
        /// May be read.
        Read = "READ" in Status,
        /// May be written.
        Write = "WRITE" in Status,
        /// May be written, but not by old versions of LVM.
        WriteLocked = "WRITE_LOCKED" in Flags,
        /// Is not activated when the host starts.
        NoAutoActivate = "NOAUTOACTIVATE" in Flags,
        /// Shared by a cluster of old.
        Clustered = "CLUSTERED" in Status,
        /// Shared through a lock manager.
        Shared = "SHARED" in Status,
    }
}

flags! {
    /// Flags of a physical volume (`_pv_flags`).
    PvFlag {
        /// New volumes may be placed here.
        Allocatable = "ALLOCATABLE" in Status,
        /// Its group belongs to another host.
        Exported = "EXPORTED" in Status,
        /// Was not there when the group was last changed: what is on it is out of date.
        Missing = "MISSING" in Flags,
    }
}

flags! {
    /// Flags of a logical volume (`_lv_flags`).
    LvFlag {
        /// May be read.
        Read = "READ" in Status,
        /// May be written.
        Write = "WRITE" in Status,
        /// May be written, but not by old versions of LVM.
        WriteLocked = "WRITE_LOCKED" in Flags,
        /// Has device numbers of its own.
        FixedMinor = "FIXED_MINOR" in Status,
        /// A volume for users; without it a part of another one.
        Visible = "VISIBLE" in Status,
        /// Carries extents that are being moved.
        PvMove = "PVMOVE" in Status,
        /// Is not to be changed while extents are moved.
        Locked = "LOCKED" in Status,
        /// A mirror that was never synced.
        NotSynced = "NOTSYNCED" in Status,
        /// A leg of a RAID that is to be rebuilt.
        Rebuild = "REBUILD" in Status,
        /// A leg of a RAID that is read only if no other one can be.
        WriteMostly = "WRITEMOSTLY" in Status,
        /// Is activated only when this is asked for (snapshots of thin volumes).
        ActivationSkip = "ACTIVATION_SKIP" in Flags,
        /// Is not activated when the host starts.
        NoAutoActivate = "NOAUTOACTIVATE" in Flags,
        /// A thin pool that fails writes at once when it is full.
        ErrorWhenFull = "ERROR_WHEN_FULL" in Flags,
        /// Holds another volume's cache.
        CacheVol = "CACHE_VOL" in Flags,
    }
}
