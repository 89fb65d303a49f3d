//! Parts of files.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, prefix};
use crate::units::Logical;

/// The start of `struct btrfs_file_extent_item`, which inline extents also have.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskFileExtent {
    /// The transaction that created it.
    pub generation: U64,
    /// Decompressed size of the whole extent.
    pub ram_bytes: U64,
    /// [`Compression`]
    pub compression: u8,
    /// Zero.
    pub encryption: u8,
    /// Zero.
    pub other_encoding: U16,
    /// 0: inline; 1: regular; 2: preallocated.
    pub kind: u8,
}

ondisk_layout!(DiskFileExtent, 21, {
    generation: 0, ram_bytes: 8, compression: 16, encryption: 17, other_encoding: 18, kind: 20,
});

/// The rest of `struct btrfs_file_extent_item`, for data that is not inline.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskFileExtentData {
    /// Address of the extent; zero is a hole.
    pub disk_bytenr: U64,
    /// Its length there in bytes.
    pub disk_num_bytes: U64,
    /// Offset in the (decompressed) extent at which this part of the file begins.
    pub offset: U64,
    /// Length of this part of the file.
    pub num_bytes: U64,
}

ondisk_layout!(DiskFileExtentData, 32, {
    disk_bytenr: 0, disk_num_bytes: 8, offset: 16, num_bytes: 24,
});

/// How data is compressed (`enum btrfs_compression_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compression {
    /// 0: not compressed.
    None,
    /// 1: zlib.
    Zlib,
    /// 2: LZO, with btrfs framing.
    Lzo,
    /// 3: Zstandard.
    Zstd,
}

impl Compression {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::Zlib, Self::Lzo, Self::Zstd];

    /// The algorithm with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name in `btrfs inspect-internal dump-tree`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }
}

/// A part of a file; the key's offset is its start in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent<'a> {
    /// The transaction that created it.
    pub generation: u64,
    /// Decompressed size of the whole extent.
    pub ram_bytes: u64,
    /// How its data is compressed.
    pub compression: Compression,
    /// Location of its data.
    pub body: FileExtentBody<'a>,
}

/// Location of the data of a file part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileExtentBody<'a> {
    /// In the item, as stored.
    Inline(&'a [u8]),
    /// In an extent.
    Regular(DataExtent),
    /// In an extent that has not been written: reads as zeroes.
    Prealloc(DataExtent),
}

/// A part of a data extent; checked, so that arithmetic with it does not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataExtent {
    /// Address of the extent; `None` is a hole.
    pub at: Option<Logical>,
    /// Its length there in bytes.
    pub disk_num_bytes: u64,
    /// Offset in the (decompressed) extent at which this part of the file begins.
    pub offset: u64,
    /// Length of this part of the file.
    pub num_bytes: u64,
}

const ITEM: &str = "file extent item";

impl<'a> FileExtent<'a> {
    /// Parses the body of an `EXTENT_DATA`.
    ///
    /// # Errors
    /// Its size is wrong; its encoding is unknown; or its numbers are not multiples of
    /// `sectorsize`, overflow, or exceed the extent.
    pub fn parse(bytes: &'a [u8], sectorsize: u32) -> Result<Self, ItemError> {
        let (disk, rest) = prefix::<DiskFileExtent>(ITEM, bytes)?;
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        let Some(compression) = Compression::from_number(disk.compression) else {
            return wrong("compression", disk.compression.into());
        };
        if disk.encryption != 0 {
            return wrong("encryption", disk.encryption.into());
        }
        if disk.other_encoding != 0 {
            return wrong("other_encoding", disk.other_encoding.get().into());
        }
        let ram_bytes = disk.ram_bytes.get();
        let body = match disk.kind {
            0 => {
                // Compressed data has the size of the item: there is nothing to compare.
                if compression == Compression::None && rest.len() as u64 != ram_bytes {
                    return wrong("ram_bytes", ram_bytes);
                }
                FileExtentBody::Inline(rest)
            }
            1 => FileExtentBody::Regular(DataExtent::parse(rest, disk, compression, sectorsize)?),
            2 => FileExtentBody::Prealloc(DataExtent::parse(rest, disk, compression, sectorsize)?),
            kind => return wrong("type", kind.into()),
        };
        Ok(Self { generation: disk.generation.get(), ram_bytes, compression, body })
    }

    /// Bytes of the file that it holds.
    pub const fn len(&self) -> u64 {
        match &self.body {
            FileExtentBody::Inline(_) => self.ram_bytes,
            FileExtentBody::Regular(data) | FileExtentBody::Prealloc(data) => data.num_bytes,
        }
    }

    /// Whether it holds no bytes of the file.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl DataExtent {
    fn parse(
        bytes: &[u8],
        head: &DiskFileExtent,
        compression: Compression,
        sectorsize: u32,
    ) -> Result<Self, ItemError> {
        let disk = exact::<DiskFileExtentData>(ITEM, bytes)?;
        let (ram_bytes, at) = (head.ram_bytes.get(), disk.disk_bytenr.get());
        let (disk_num_bytes, offset) = (disk.disk_num_bytes.get(), disk.offset.get());
        let num_bytes = disk.num_bytes.get();
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        let fields = [
            ("ram_bytes", ram_bytes),
            ("disk_bytenr", at),
            ("disk_num_bytes", disk_num_bytes),
            ("offset", offset),
            ("num_bytes", num_bytes),
        ];
        let sector = u64::from(sectorsize.max(1));
        if let Some((field, value)) = fields.into_iter().find(|(_, value)| value % sector != 0) {
            return wrong(field, value);
        }
        if at.checked_add(disk_num_bytes).is_none() {
            return wrong("disk_num_bytes", disk_num_bytes);
        }
        let end = offset.checked_add(num_bytes).filter(|_| num_bytes > 0);
        // The part lies within the extent. A hole has no bytes anywhere.
        let limit = match compression {
            Compression::None if at == 0 => u64::MAX,
            Compression::None => disk_num_bytes,
            Compression::Zlib | Compression::Lzo | Compression::Zstd => ram_bytes,
        };
        if end.is_none_or(|end| end > limit) {
            return wrong("num_bytes", num_bytes);
        }
        let at = (at != 0).then_some(Logical(at));
        Ok(Self { at, disk_num_bytes, offset, num_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::join;
    use super::*;

    /// An item with the numbers in the order of the struct.
    fn item(ram_bytes: u64, compression: u8, kind: u8, numbers: [u64; 4]) -> Vec<u8> {
        let numbers = numbers.map(u64::to_le_bytes).concat();
        let head = [&7_u64.to_le_bytes()[..], &ram_bytes.to_le_bytes()].concat();
        join(&[&head, &[compression, 0, 0, 0, kind], &numbers])
    }

    fn wrong_field(bytes: &[u8]) -> &'static str {
        match FileExtent::parse(bytes, 4096) {
            Err(ItemError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_extent_is_read_as_it_was_written() {
        let bytes = item(0x8000, 3, 1, [0x10_0000, 0x2000, 0x3000, 0x4000]);
        let data = DataExtent {
            at: Some(Logical(0x10_0000)),
            disk_num_bytes: 0x2000,
            offset: 0x3000,
            num_bytes: 0x4000,
        };
        let extent = FileExtent::parse(&bytes, 4096).unwrap();
        let wanted = FileExtent {
            generation: 7,
            ram_bytes: 0x8000,
            compression: Compression::Zstd,
            body: FileExtentBody::Regular(data),
        };
        assert_eq!((extent, extent.len()), (wanted, 0x4000));
        let bytes = item(0x8000, 0, 2, [0x10_0000, 0x8000, 0x3000, 0x4000]);
        let data = DataExtent { disk_num_bytes: 0x8000, ..data };
        let extent = FileExtent::parse(&bytes, 4096).unwrap();
        assert_eq!(extent.body, FileExtentBody::Prealloc(data));
        let bytes = item(0x4000, 0, 1, [0, 0, 0, 0x4000]);
        let FileExtentBody::Regular(hole) = FileExtent::parse(&bytes, 4096).unwrap().body else {
            panic!("a hole is regular");
        };
        assert_eq!(hole.at, None);
    }

    #[test]
    fn inline_data_is_the_rest_of_the_item() {
        let whole = item(32, 0, 0, [1, 2, 3, 4]);
        let extent = FileExtent::parse(&whole, 4096).unwrap();
        assert_eq!((extent.body, extent.len()), (FileExtentBody::Inline(&whole[21..]), 32));
        assert_eq!(wrong_field(&whole[..52]), "ram_bytes");
        let packed = item(4000, 2, 0, [1, 2, 3, 4]);
        let extent = FileExtent::parse(&packed[..30], 4096).unwrap();
        assert_eq!((extent.body, extent.len()), (FileExtentBody::Inline(&packed[21..30]), 4000));
        let nothing = FileExtent::parse(&item(0, 0, 0, [0; 4])[..21], 4096).unwrap().is_empty();
        assert!(nothing);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = [0x10_0000, 0x2000, 0x1000, 0x1000];
        let bytes = item(0x2000, 0, 1, good);
        assert!(FileExtent::parse(&bytes, 4096).is_ok());
        for len in 0..bytes.len() {
            assert!(FileExtent::parse(&bytes[..len], 4096).is_err(), "{len}");
        }
        assert!(FileExtent::parse(&join(&[&bytes, &[0]]), 4096).is_err());
        let changed = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] = 4;
            wrong_field(&bytes)
        };
        let at = [16, 17, 18, 19, 20, 8, 21, 29, 37, 45].map(changed);
        let wanted = [
            "compression",
            "encryption",
            "other_encoding",
            "other_encoding",
            "type",
            "ram_bytes",
            "disk_bytenr",
            "disk_num_bytes",
            "offset",
            "num_bytes",
        ];
        assert_eq!(at, wanted);
        let far = u64::MAX - 0xfff;
        let of = |compression, numbers| wrong_field(&item(0x2000, compression, 1, numbers));
        assert_eq!(of(0, [far, 0x2000, 0, 0x1000]), "disk_num_bytes");
        assert_eq!(of(0, [0x1000, 0x2000, far, 0x1000]), "num_bytes");
        assert_eq!(of(0, [0x1000, 0x2000, 0x1000, 0x2000]), "num_bytes");
        assert_eq!(of(0, [0x1000, 0x2000, 0, 0]), "num_bytes");
        assert_eq!(of(1, [0x1000, 0x9000, 0x1000, 0x2000]), "num_bytes");
    }
}
