//! The golden cases of tests/images/lvm; the script `create` there describes them.

use ashlar_block::{Sector, Sectors};
use ashlar_lvm::Metadata;
use ashlar_lvm::ondisk::layout::SECTOR_SIZE;
use ashlar_lvm::ondisk::{MdaHeader, PvLabel};
use ashlar_sim::{Media, SimDisk};

/// The size of LVM's disks.
pub(crate) const DISK: Sectors = Sectors(96 << 11);

/// LVM's output for one case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The text on disk.
    pub(crate) disk: &'static [u8],
    /// The same from vgcfgbackup.
    pub(crate) backup: &'static [u8],
    /// For each physical volume, the label and the headers of its areas.
    pub(crate) pvs: &'static [&'static [u8]],
}

macro_rules! case {
    ($name:literal, [$($pv:literal),+]) => {
        Case {
            name: $name,
            disk: include_bytes!(concat!("../../../../../tests/images/lvm/", $name, ".disk")),
            backup: include_bytes!(concat!("../../../../../tests/images/lvm/", $name, ".backup")),
            pvs: &[$(
                include_bytes!(concat!("../../../../../tests/images/lvm/", $name, ".", $pv, ".pv")),
            )+],
        }
    };
}

/// All cases.
pub(crate) const CASES: &[Case] = &[
    case!("empty", ["0"]),
    case!("linear", ["0", "1"]),
    case!("striped", ["0", "1", "2", "3", "4"]),
    case!("snapshots", ["0", "1"]),
    case!("merging", ["0", "1"]),
    case!("raid", ["0", "1", "2", "3", "4"]),
    case!("mirror", ["0", "1", "2", "3", "4"]),
    case!("thin", ["0", "1"]),
    case!("cache", ["0", "1"]),
    case!("areas", ["0", "1", "2", "3"]),
    case!("wrapped", ["0"]),
    case!("missing", ["0"]),
];

/// The case with this name.
pub(crate) fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a case")
}

impl Case {
    /// The text on disk, parsed.
    pub(crate) fn metadata(&self) -> Metadata {
        Metadata::parse(self.disk).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The label of a physical volume, and its sector.
    pub(crate) fn label(&self, pv: usize) -> (u8, PvLabel) {
        let sector = self.pvs[pv].first_chunk::<SECTOR_SIZE>().expect("a label");
        let number = sector[8];
        (number, PvLabel::parse(sector, number).expect("LVM's own label"))
    }

    /// The headers of the metadata areas of a physical volume, as bytes.
    pub(crate) fn headers(&self, pv: usize) -> &'static [[u8; SECTOR_SIZE]] {
        &self.pvs[pv].as_chunks::<SECTOR_SIZE>().0[1..]
    }

    /// The disks as LVM left them, except for data unrelated to LVM.
    pub(crate) fn disks(&self) -> Vec<SimDisk> {
        (0..self.pvs.len()).map(|pv| self.disk(pv)).collect()
    }

    fn disk(&self, pv: usize) -> SimDisk {
        let media = Media::new(DISK);
        let (sector, label) = self.label(pv);
        media.poke(Sector(sector.into()), &self.pvs[pv][..SECTOR_SIZE]);
        for (bytes, place) in self.headers(pv).iter().zip(&label.metadata_areas) {
            media.poke(Sector::from_bytes_floor(place.offset), bytes);
            let header = MdaHeader::parse(bytes, *place).expect("LVM's own header");
            let Some(text) = header.current.filter(|_| !header.ignored) else { continue };
            let mut rest = [self.disk, &[0]].concat();
            assert_eq!(text.size, rest.len() as u64, "{}", self.name);
            for part in header.locate(text).expect("in place").parts {
                let mut bytes: Vec<u8> = rest.drain(..part.size as usize).collect();
                bytes.resize(bytes.len().next_multiple_of(SECTOR_SIZE), 0);
                if !bytes.is_empty() {
                    media.poke(Sector::from_bytes_floor(part.offset), &bytes);
                }
            }
        }
        SimDisk::over(format!("{}{pv}", self.name), media)
    }
}
