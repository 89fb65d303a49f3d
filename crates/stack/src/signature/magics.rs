//! Signatures that are a constant at a constant place.

use super::{Image, RESHAPE_BACKUP, Signature, Usage};

/// A magic number. A negative offset counts from the end of the device.
struct Magic(&'static str, Usage, i64, &'static [u8]);

/// The table; sources are each format's own headers, and `libblkid` for the offsets it reports; for disk
/// images the interop documents of QEMU, the VHD, VHDX and VMDK specifications and VirtualBox's headers.
const MAGICS: &[Magic] = &[
    Magic("xfs", Usage::FileSystem, 0, b"XFSB"),
    Magic("btrfs", Usage::FileSystem, 0x1_0040, b"_BHRfS_M"),
    Magic("f2fs", Usage::FileSystem, 0x400, b"\x10\x20\xf5\xf2"),
    Magic("erofs", Usage::FileSystem, 0x400, b"\xe2\xe1\xf5\xe0"),
    Magic("squashfs", Usage::FileSystem, 0, b"hsqs"),
    Magic("jfs", Usage::FileSystem, 0x8000, b"JFS1"),
    Magic("reiserfs", Usage::FileSystem, 0x1_0034, b"ReIsErFs"),
    Magic("reiserfs", Usage::FileSystem, 0x1_0034, b"ReIsEr2Fs"),
    Magic("reiserfs", Usage::FileSystem, 0x1_0034, b"ReIsEr3Fs"),
    Magic("apfs", Usage::FileSystem, 0x20, b"NXSB"),
    Magic("iso9660", Usage::FileSystem, 0x8001, b"CD001"),
    Magic("udf", Usage::FileSystem, 0x8001, b"BEA01"),
    Magic("ntfs", Usage::FileSystem, 3, b"NTFS    "),
    Magic("exfat", Usage::FileSystem, 3, b"EXFAT   "),
    Magic(
        "bcachefs",
        Usage::FileSystem,
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    Magic(
        "bcache",
        Usage::Member,
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    Magic(RESHAPE_BACKUP, Usage::Backup, 0, b"md_backup_data-"),
    Magic("DM_snapshot_cow", Usage::Snapshot, 0, b"SnAp"),
    Magic("VMFS_volume_member", Usage::Member, 0x10_0000, b"\x0d\xd0\x01\xc0"),
    Magic("hpt37x_raid_member", Usage::Member, 0x1220, b"\xf0\x16\x78\x5a"),
    Magic("hpt37x_raid_member", Usage::Member, 0x1220, b"\xfd\x16\x78\x5a"),
    Magic("qcow", Usage::Image, 0, b"QFI\xfb\x00\x00\x00\x01"),
    Magic("qcow2", Usage::Image, 0, b"QFI\xfb\x00\x00\x00\x02"),
    Magic("qcow2", Usage::Image, 0, b"QFI\xfb\x00\x00\x00\x03"),
    Magic("qed", Usage::Image, 0, b"QED\x00"),
    Magic("vmdk", Usage::Image, 0, b"KDMV"),
    Magic("vmdk", Usage::Image, 0, b"COWD"),
    Magic("vmdk", Usage::Image, 0, b"# Disk DescriptorFile"),
    Magic("vdi", Usage::Image, 0x40, b"\x7f\x10\xda\xbe"),
    // Fixed size: only a footer.
    Magic("vpc", Usage::Image, 0, b"conectix"),
    Magic("vpc", Usage::Image, -512, b"conectix"),
    Magic("vhdx", Usage::Image, 0, b"vhdxfile"),
    Magic("parallels", Usage::Image, 0, b"WithoutFreeSpace"),
    Magic("parallels", Usage::Image, 0, b"WithouFreSpacExt"),
];

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    for Magic(name, usage, offset, magic) in MAGICS {
        let offset = match u64::try_from(*offset) {
            Ok(offset) => Some(offset),
            Err(_) => image.size().checked_sub(offset.unsigned_abs()),
        };
        if let Some(offset) = offset.filter(|offset| image.has(*offset, magic)) {
            found.push(Signature { name, usage: *usage, offset });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_of_the_table_is_found_alone() {
        for Magic(name, usage, offset, magic) in MAGICS {
            let size = 2 << 20;
            let at = u64::try_from(*offset).unwrap_or(size - offset.unsigned_abs());
            let mut bytes = vec![0; size as usize];
            bytes[at as usize..][..magic.len()].copy_from_slice(magic);
            let mut image = Image::new(size);
            image.add(0, bytes);
            let expected = Signature { name, usage: *usage, offset: at };
            assert_eq!(super::super::detect(&image), [expected]);
        }
    }
}
