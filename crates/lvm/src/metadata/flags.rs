//! Flags in the lists `status` and `flags`.
//!
//! LVM refuses a group with an unknown word in `status`, and ignores unknown words in `flags`. Here
//! unknown words of both are kept; see [`FlagSet::unknown_status`].

use std::fmt;

/// A flag in one of the two lists.
pub trait Flag: Clone + PartialEq + fmt::Debug + Sized + 'static {
    /// The known words in LVM's order, with the list that contains them.
    const KNOWN: &'static [(Self, &'static str, List)];
    /// The flag for an unknown word.
    fn other(word: &str) -> Self;
    /// The word, if it is unknown.
    fn as_other(&self) -> Option<&str>;
}

/// The two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// `status`: software that does not know a word must not use the object.
    Status,
    /// `flags`: software that does not know a word may use the object.
    Flags,
}

/// The flags of a group, a physical volume or a logical volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlagSet<F> {
    pub(super) status: Vec<F>,
    /// `None`: the list does not exist (old versions).
    pub(super) flags: Option<Vec<F>>,
}

impl<F: Flag> FlagSet<F> {
    /// A set of these flags.
    pub fn new(flags: impl IntoIterator<Item = F>) -> Self {
        let mut set = Self { status: Vec::new(), flags: Some(Vec::new()) };
        for flag in flags {
            set.insert(flag);
        }
        set
    }

    /// Whether the flag is set, in either list.
    pub fn contains(&self, flag: &F) -> bool {
        self.iter().any(|set| set == flag)
    }

    /// All flags, `status` first.
    pub fn iter(&self) -> impl Iterator<Item = &F> {
        self.status.iter().chain(self.flags.iter().flatten())
    }

    /// Sets the flag, in its list.
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

    /// Clears the flag, in both lists.
    pub fn remove(&mut self, flag: &F) {
        self.status.retain(|set| set != flag);
        if let Some(flags) = &mut self.flags {
            flags.retain(|set| set != flag);
        }
    }

    /// The first unknown word in `status`. An object with one must not be used or changed.
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
            /// An unknown word.
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
        /// Physical volumes may be added and removed.
        Resizeable = "RESIZEABLE" in Status,
        /// Extents are being moved.
        PvMove = "PVMOVE" in Status,
        /// Readable.
        Read = "READ" in Status,
        /// Writable.
        Write = "WRITE" in Status,
        /// Writable, but not for old versions of LVM.
        WriteLocked = "WRITE_LOCKED" in Flags,
        /// Not activated when the host starts.
        NoAutoActivate = "NOAUTOACTIVATE" in Flags,
        /// Shared by an old-style cluster.
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
        /// Was missing when the group was last changed: its data is outdated.
        Missing = "MISSING" in Flags,
    }
}

flags! {
    /// Flags of a logical volume (`_lv_flags`).
    LvFlag {
        /// Readable.
        Read = "READ" in Status,
        /// Writable.
        Write = "WRITE" in Status,
        /// Writable, but not for old versions of LVM.
        WriteLocked = "WRITE_LOCKED" in Flags,
        /// Has fixed device numbers.
        FixedMinor = "FIXED_MINOR" in Status,
        /// A volume for users; without it, a part of another volume.
        Visible = "VISIBLE" in Status,
        /// Contains extents that are being moved.
        PvMove = "PVMOVE" in Status,
        /// Must not be changed while extents are moved.
        Locked = "LOCKED" in Status,
        /// A mirror that was never synced.
        NotSynced = "NOTSYNCED" in Status,
        /// A leg of a RAID that must be rebuilt.
        Rebuild = "REBUILD" in Status,
        /// Write-mostly: a leg of a RAID that is read only if no other one can be.
        WriteMostly = "WRITEMOSTLY" in Status,
        /// Activated only on request (snapshots of thin volumes).
        ActivationSkip = "ACTIVATION_SKIP" in Flags,
        /// Not activated when the host starts.
        NoAutoActivate = "NOAUTOACTIVATE" in Flags,
        /// A thin pool that fails writes at once when it is full.
        ErrorWhenFull = "ERROR_WHEN_FULL" in Flags,
        /// Contains another volume's cache.
        CacheVol = "CACHE_VOL" in Flags,
    }
}
