//! The layout word of a parity array: where parity is in each row, where data is, and how Q counts the data.
//!
//! Three questions describe every layout that the kernel knows, so a [`Layout`] is the three answers:
//!
//! | question | answers |
//! |---|---|
//! | which member has P | the first, the last, or one that moves by one member each row: to the left or to the right |
//! | where is Q | behind P, before P, or on the last member, outside the rows of a RAID 5 (the `-6` forms) |
//! | where does data begin | on the lowest member without parity, or behind the parity, around the end |
//!
//! Q is the sum of the data times powers of two. md counts the data members from Q on, around the end; DDF takes a member's own number.
//!
//! Source of the facts: the kernel's `raid5.h` (`algorithm_valid_raid5`, `algorithm_valid_raid6`) and `raid5.c`
//! (`raid5_compute_sector`, `raid6_d0`); the tables of the tests were made by real kernels.

/// A level with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParityLevel {
    /// P on the last member. The superblock's layout means nothing.
    Raid4,
    /// P.
    Raid5,
    /// P and Q.
    Raid6,
}

impl ParityLevel {
    /// Chunks of parity in a row.
    pub const fn parities(self) -> usize {
        match self {
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
        }
    }

    /// The fewest members of an array. With two, RAID 4 and 5 are mirrors.
    pub const fn least_members(self) -> usize {
        2 * self.parities()
    }
}

/// The member that has P in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PlaceOfP {
    First,
    Last,
    /// The last one in row 0, and one to the left in each further row.
    Left,
    /// As `Left`, a row further (ddf-N-restart).
    LeftNext,
    /// The first one in row 0, and one to the right in each further row.
    Right,
}

/// The member that has Q in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PlaceOfQ {
    /// There is no Q.
    None,
    AfterP,
    BeforeP,
    /// The last member: the others are a RAID 5.
    Outside,
}

/// The order of a row's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DataOrder {
    /// By the member's number.
    Ascending,
    /// From the member behind the parity on, around the end.
    BehindParity,
}

/// What Q counts a data member as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum QOrder {
    /// Its place among the data members, from the one behind Q on, around the end.
    Md,
    /// Its number among all members.
    Ddf,
}

/// A decoded layout word. See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub(super) p: PlaceOfP,
    pub(super) q: PlaceOfQ,
    pub(super) data: DataOrder,
    pub(super) q_order: QOrder,
}

/// Why a layout word is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Not one of RAID 5.
    #[error("unsupported raid5 layout {0}: the kernel knows 0 to 5")]
    Raid5(u32),
    /// Not one of RAID 6.
    #[error("unsupported raid6 layout {0}: the kernel knows 0 to 5, 8 to 10 and 16 to 20")]
    Raid6(u32),
}

impl Layout {
    /// Decodes the superblock's field.
    ///
    /// # Errors
    /// The level has no such layout.
    pub const fn from_word(level: ParityLevel, word: u32) -> Result<Self, LayoutError> {
        use DataOrder::{Ascending, BehindParity};
        use PlaceOfP::{First, Last, Left, LeftNext, Right};
        // The six of RAID 5, which RAID 6 and its `-6` forms repeat.
        let (p, data) = match word & 7 {
            0 => (Left, Ascending),
            1 => (Right, Ascending),
            2 => (Left, BehindParity),
            3 => (Right, BehindParity),
            4 => (First, Ascending),
            _ => (Last, Ascending),
        };
        let q_order = QOrder::Md;
        match level {
            ParityLevel::Raid4 => {
                let (p, q) = (Last, PlaceOfQ::None);
                Ok(Self { p, q, data: Ascending, q_order })
            }
            ParityLevel::Raid5 => match word {
                0..=5 => Ok(Self { p, q: PlaceOfQ::None, data, q_order }),
                _ => Err(LayoutError::Raid5(word)),
            },
            ParityLevel::Raid6 => {
                let (p, q, data, q_order) = match word {
                    0..=5 => (p, PlaceOfQ::AfterP, data, QOrder::Md),
                    8 => (Right, PlaceOfQ::AfterP, Ascending, QOrder::Ddf),
                    9 => (LeftNext, PlaceOfQ::AfterP, Ascending, QOrder::Ddf),
                    10 => (Left, PlaceOfQ::BeforeP, BehindParity, QOrder::Ddf),
                    16..=20 => (p, PlaceOfQ::Outside, data, QOrder::Md),
                    _ => return Err(LayoutError::Raid6(word)),
                };
                Ok(Self { p, q, data, q_order })
            }
        }
    }
}
