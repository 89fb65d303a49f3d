//! A 64 KiB stripe on one device, and what to verify in it.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{CopyNumber, Gateway};

use super::places::Places;
use super::problem::{ProblemKind, TreeBlock};
use super::sectors::Sectors;
use crate::extent_walk::{Extent, ExtentKind, Sum};
use crate::ondisk::chunk::{Chunk, STRIPE_LEN};
use crate::ondisk::node::{BlockExpectation, check_header};
use crate::units::{Logical, MirrorNum, Physical};
use crate::volume::FileSystem;

/// Maximum number of sectors in a stripe: a sector has at least 4 KiB.
pub(super) const SECTORS_MAX: usize = 16;

/// A unit of verification: a data sector or a tree block.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Its sectors in the stripe.
    pub(super) sectors: Range<usize>,
    pub(super) kind: UnitKind,
}

/// Expected content of a unit.
#[derive(Clone, Debug)]
pub(super) enum UnitKind {
    Data(Sum),
    Tree(TreeBlock),
    /// A part of a tree block that crosses an end of the stripe.
    Crossing(TreeBlock),
}

impl Unit {
    /// Whether its bytes prove by themselves that they are right.
    pub(super) const fn is_proven(&self) -> bool {
        match self.kind {
            UnitKind::Data(Sum::Known(_)) | UnitKind::Tree(_) => true,
            UnitKind::Data(Sum::None | Sum::Unknown) | UnitKind::Crossing(_) => false,
        }
    }
}

/// A stripe and its contents.
pub(super) struct Stripe {
    pub(super) chunk: Arc<Chunk>,
    /// Its offset on the device according to the chunk.
    pub(super) physical: Physical,
    /// Locations of its sectors: at `physical`, unless the RAID stripe tree says otherwise.
    pub(super) places: Places,
    pub(super) logical: Logical,
    pub(super) mirror: MirrorNum,
    /// [`STRIPE_LEN`], or less at the end of a chunk.
    pub(super) len: u64,
    pub(super) sectorsize: u64,
    pub(super) units: Vec<Unit>,
    pub(super) data_extents: u64,
    pub(super) tree_extents: u64,
}

impl Stripe {
    /// The stripe at `logical`, without contents yet.
    pub(super) fn new(
        chunk: &Arc<Chunk>,
        physical: Physical,
        logical: Logical,
        mirror: MirrorNum,
        sectorsize: u32,
    ) -> Self {
        let len = STRIPE_LEN.min(chunk.end().0.saturating_sub(logical.0));
        let sectorsize = u64::from(sectorsize);
        Self {
            chunk: Arc::clone(chunk),
            physical,
            places: Places::linear(physical, (len / sectorsize) as usize, sectorsize),
            logical,
            mirror,
            len,
            sectorsize,
            units: Vec::new(),
            data_extents: 0,
            tree_extents: 0,
        }
    }

    pub(super) fn end(&self) -> Logical {
        Logical(self.logical.0 + self.len)
    }

    /// Whether the stripe has no contents.
    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The sectors of all units.
    pub(super) fn used(&self) -> Sectors {
        let mut used = Sectors::default();
        self.units.iter().for_each(|unit| used.insert(unit.sectors.clone()));
        used
    }

    /// The used sectors to read: allocated sectors that were never written may have no location.
    pub(super) fn stored(&self) -> Sectors {
        self.places.placed(self.used())
    }

    /// How many copies of the stripe its device has, if some of its contents can be verified.
    pub(super) fn copies(&self, gateway: &Gateway) -> u16 {
        if !self.units.iter().any(Unit::is_proven) {
            return 1;
        }
        gateway.copies(self.physical.sector(), ashlar_block::Sectors::from_bytes_floor(self.len))
    }

    /// The copy to read first, of `copies`; the others follow. Contents that only a plain read
    /// may judge are read plainly, and then all copies of the rest.
    pub(super) fn first_copy(&self, copies: u16) -> CopyNumber {
        let is_named = copies > 1 && self.units.iter().all(Unit::is_proven);
        if is_named { CopyNumber(1) } else { CopyNumber::ANY }
    }

    /// Adds the part of an extent that is in the stripe and not before `from`.
    pub(super) fn add(&mut self, extent: &Extent, from: Logical) {
        let start = extent.start.max(from).max(self.logical);
        let end = extent.end().min(self.end());
        if start >= end {
            return;
        }
        let sector = |at: Logical| ((at.0 - self.logical.0) / self.sectorsize) as usize;
        let sectors = sector(start)..sector(end);
        match extent.kind {
            ExtentKind::Data => {
                self.data_extents += 1;
                for sector in sectors {
                    let kind = UnitKind::Data(Sum::None);
                    self.units.push(Unit { sectors: sector..sector + 1, kind });
                }
            }
            ExtentKind::Tree { level, owner } => {
                self.tree_extents += 1;
                let tree = TreeBlock { generation: extent.generation, level, owner };
                let whole = start == extent.start && end == extent.end();
                let kind = if whole { UnitKind::Tree(tree) } else { UnitKind::Crossing(tree) };
                self.units.push(Unit { sectors, kind });
            }
        }
    }

    /// Sets the checksums of the stripe's sectors.
    pub(super) fn set_sums(&mut self, sums: &[Sum]) {
        for unit in &mut self.units {
            if let UnitKind::Data(sum) = &mut unit.kind {
                *sum = sums.get(unit.sectors.start).copied().unwrap_or(Sum::None);
            }
        }
    }

    /// Address of a sector in the file system's space.
    pub(super) fn logical_of(&self, sector: usize) -> Logical {
        Logical(self.logical.0 + sector as u64 * self.sectorsize)
    }

    /// Offset of a sector on the device; if it has no location, its offset according to the chunk.
    pub(super) fn physical_of(&self, sector: usize) -> Physical {
        self.places.get(sector).unwrap_or_else(|| self.of_chunk(sector))
    }

    /// Offset of a sector according to the chunk.
    fn of_chunk(&self, sector: usize) -> Physical {
        Physical(self.physical.0 + sector as u64 * self.sectorsize)
    }

    /// Whether sectors are where the chunk has them: nothing else can be stored there.
    pub(super) fn is_in_chunk_order(&self, sectors: &Range<usize>) -> bool {
        sectors.clone().all(|sector| self.places.get(sector) == Some(self.of_chunk(sector)))
    }

    /// Byte range of sectors in the stripe.
    pub(super) fn bytes_of(&self, sectors: &Range<usize>) -> Range<usize> {
        let sector = self.sectorsize as usize;
        sectors.start * sector..sectors.end * sector
    }

    /// Checks bytes of a unit that were read without an error; returns what is wrong.
    pub(super) fn check(&self, fs: &FileSystem, unit: &Unit, bytes: &[u8]) -> Option<ProblemKind> {
        match &unit.kind {
            UnitKind::Data(Sum::Known(sum)) => {
                let good = fs.identity().csum.compute(bytes).is(sum);
                (!good).then_some(ProblemKind::Checksum)
            }
            UnitKind::Data(Sum::None | Sum::Unknown) => None,
            UnitKind::Tree(tree) => {
                let expected = BlockExpectation {
                    at: self.logical_of(unit.sectors.start),
                    generation: Some(tree.generation),
                    level: tree.level,
                    first_key: None,
                };
                check_header(bytes, fs.identity(), &expected).err().map(ProblemKind::Verify)
            }
            UnitKind::Crossing(_) => Some(ProblemKind::Crossing),
        }
    }

    /// Whether a replacement for the unit can be recognized: as in the kernel, another copy is
    /// trusted if there is no checksum, but not if the checksum could not be read.
    pub(super) const fn is_repairable(unit: &Unit) -> bool {
        match unit.kind {
            UnitKind::Data(Sum::Known(_) | Sum::None) | UnitKind::Tree(_) => true,
            UnitKind::Data(Sum::Unknown) | UnitKind::Crossing(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::ondisk::chunk::{BlockGroupFlags, Profile};

    /// The second 64 KiB stripe of a chunk of 1 MiB at 1 MiB.
    fn stripe() -> Stripe {
        let chunk = Chunk {
            start: Logical(1 << 20),
            length: 1 << 20,
            flags: BlockGroupFlags::METADATA,
            profile: Profile::Single,
            stripes: SmallVec::new(),
        };
        let logical = Logical((1 << 20) + STRIPE_LEN);
        Stripe::new(&Arc::new(chunk), Physical(STRIPE_LEN), logical, MirrorNum(1), 4096)
    }

    fn extent(stripe: &Stripe, sector: i64, sectors: u64, kind: ExtentKind) -> Extent {
        let start = Logical(stripe.logical.0.wrapping_add_signed(sector * 4096));
        Extent { start, length: sectors * 4096, generation: 7, kind }
    }

    /// Extents across both ends: data is cut to the stripe; tree blocks there are not verified.
    #[test]
    fn extents_are_cut_at_the_ends_of_a_stripe() {
        let mut it = stripe();
        let tree = ExtentKind::Tree { level: Some(0), owner: None };
        let from = it.logical;
        for (sector, sectors, kind) in
            [(-2, 4, tree), (3, 1, ExtentKind::Data), (8, 4, tree), (13, 9, ExtentKind::Data)]
        {
            let extent = extent(&it, sector, sectors, kind);
            it.add(&extent, from);
        }
        assert_eq!((it.data_extents, it.tree_extents), (2, 2));
        let units: Vec<_> = it.units.iter().map(|unit| unit.sectors.clone()).collect();
        assert_eq!(units, [0..2, 3..4, 8..12, 13..14, 14..15, 15..16]);
        assert!(matches!(it.units[0].kind, UnitKind::Crossing(_)));
        assert!(matches!(it.units[2].kind, UnitKind::Tree(_)));
        assert!(!Stripe::is_repairable(&it.units[0]) && Stripe::is_repairable(&it.units[2]));
        assert_eq!(it.used().0, 0b1110_1111_0000_1011);

        let mut it = stripe();
        it.add(&extent(&it, 14, 4, tree), from);
        assert!(matches!(it.units[0].kind, UnitKind::Crossing(_)));
        assert_eq!(it.units[0].sectors, 14..16);
        for outside in [extent(&it, 16, 4, tree), extent(&it, -4, 4, ExtentKind::Data)] {
            it.add(&outside, from);
        }
        assert_eq!(it.units.len(), 1);
    }

    /// Data whose checksum is unknown is never used as a good copy.
    #[test]
    fn without_knowledge_of_its_checksum_nothing_passes_for_data() {
        let data = |sum| Unit { sectors: 0..1, kind: UnitKind::Data(sum) };
        assert!(Stripe::is_repairable(&data(Sum::Known([0; 32]))));
        assert!(Stripe::is_repairable(&data(Sum::None)));
        assert!(!Stripe::is_repairable(&data(Sum::Unknown)));
    }
}
