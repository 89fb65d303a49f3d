//! Numbers and structs of the driver (`include/uapi/linux/ublk_cmd.h`).

use ashlar_block::ondisk_layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `_IOC` of `include/uapi/asm-generic/ioctl.h`, of the type `u`.
const fn command(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn reads(number: u32) -> u32 {
    command(2, number, size_of::<ControlCommand>())
}

const fn changes(number: u32) -> u32 {
    command(3, number, size_of::<ControlCommand>())
}

pub(crate) const GET_DEV_INFO: u32 = reads(0x02);
pub(crate) const ADD_DEV: u32 = changes(0x04);
pub(crate) const DEL_DEV: u32 = changes(0x05);
pub(crate) const START_DEV: u32 = changes(0x06);
pub(crate) const STOP_DEV: u32 = changes(0x07);
pub(crate) const SET_PARAMS: u32 = changes(0x08);
pub(crate) const GET_PARAMS: u32 = reads(0x09);
pub(crate) const START_USER_RECOVERY: u32 = changes(0x10);
pub(crate) const END_USER_RECOVERY: u32 = changes(0x11);
pub(crate) const GET_FEATURES: u32 = reads(0x13);
pub(crate) const UPDATE_SIZE: u32 = changes(0x15);

pub(crate) const FETCH: u32 = command(3, 0x20, size_of::<IoCommand>());
pub(crate) const COMMIT_AND_FETCH: u32 = command(3, 0x21, size_of::<IoCommand>());

pub(crate) const F_USER_RECOVERY: u64 = 1 << 3;
pub(crate) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(crate) const F_UNPRIVILEGED_DEV: u64 = 1 << 5;
pub(crate) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub(crate) const F_UPDATE_SIZE: u64 = 1 << 10;

/// The state of a device with a server, or whose server has gone unnoticed.
pub(crate) const LIVE: u16 = 1;
/// The state of a device whose server has gone.
pub(crate) const QUIESCED: u16 = 2;

/// The most requests of a queue: descriptions of queues lie this many apart.
pub(crate) const MAX_DEPTH: usize = 4096;

pub(crate) const OP_READ: u32 = 0;
pub(crate) const OP_WRITE: u32 = 1;
pub(crate) const OP_FLUSH: u32 = 2;
pub(crate) const OP_DISCARD: u32 = 3;
pub(crate) const OP_WRITE_ZEROES: u32 = 5;
pub(crate) const IO_FUA: u32 = 1 << 13;
pub(crate) const IO_NOUNMAP: u32 = 1 << 15;

/// Any device, for [`ADD_DEV`]; no queue.
pub(crate) const ANY: u32 = u32::MAX;
pub(crate) const NO_QUEUE: u16 = u16::MAX;

/// `ublksrv_ctrl_cmd`. The memory at the address begins with a path of `path_len` bytes for devices of users without rights.
#[derive(IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub(crate) struct ControlCommand {
    pub(crate) device: u32,
    pub(crate) queue: u16,
    pub(crate) len: u16,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) path_len: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}

ondisk_layout!(ControlCommand, 32, { device: 0, queue: 4, len: 6, address: 8, data: 16, path_len: 24 });

/// `ublksrv_io_cmd`.
#[derive(IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
pub(crate) struct IoCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) address: u64,
}

ondisk_layout!(IoCommand, 16, { queue: 0, tag: 2, result: 4, address: 8 });

/// `ublksrv_io_desc`: a request.
#[derive(FromBytes, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Description {
    /// Bits 0 to 7: the operation; the others: flags.
    pub(crate) op_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) start: u64,
    pub(crate) address: u64,
}

ondisk_layout!(Description, 24, { op_flags: 0, sectors: 4, start: 8, address: 16 });

/// `ublksrv_ctrl_dev_info`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Default, Debug)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) pad0: u16,
    pub(crate) max_io_bytes: u32,
    pub(crate) device: u32,
    pub(crate) server: i32,
    pub(crate) pad1: u32,
    pub(crate) flags: u64,
    /// Ours: the driver keeps it.
    pub(crate) own: u64,
    pub(crate) owner_user: u32,
    pub(crate) owner_group: u32,
    pub(crate) reserved: [u64; 2],
}

ondisk_layout!(DeviceInfo, 64, {
    queues: 0, depth: 2, state: 4, max_io_bytes: 8, device: 12, server: 16, flags: 24, own: 32, owner_user: 40,
});

pub(crate) const ATTRIBUTE_READ_ONLY: u32 = 1 << 0;
pub(crate) const ATTRIBUTE_VOLATILE_CACHE: u32 = 1 << 2;
pub(crate) const ATTRIBUTE_FUA: u32 = 1 << 3;

/// Those that a server sets.
const ATTRIBUTES: u32 = ATTRIBUTE_READ_ONLY | ATTRIBUTE_VOLATILE_CACHE | ATTRIBUTE_FUA;

/// Which parameters are set: the basic ones, and those of discards.
pub(crate) const BASIC: u32 = 1 << 0;
pub(crate) const DISCARD: u32 = 1 << 1;

/// `ublk_params` with `ublk_param_basic` and `ublk_param_discard`, as in Linux 6.0; later ones have more behind them.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters {
    pub(crate) len: u32,
    pub(crate) kinds: u32,
    pub(crate) attributes: u32,
    pub(crate) logical_block_shift: u8,
    pub(crate) physical_block_shift: u8,
    pub(crate) io_opt_shift: u8,
    pub(crate) io_min_shift: u8,
    pub(crate) max_sectors: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) virt_boundary_mask: u64,
    pub(crate) discard_alignment: u32,
    pub(crate) discard_granularity: u32,
    pub(crate) max_discard_sectors: u32,
    pub(crate) max_write_zeroes_sectors: u32,
    pub(crate) max_discard_segments: u16,
    pub(crate) reserved: u16,
    pub(crate) pad: u32,
}

ondisk_layout!(Parameters, 64, {
    len: 0, kinds: 4, attributes: 8, logical_block_shift: 12, max_sectors: 16, sectors: 24, virt_boundary_mask: 32,
    discard_alignment: 40, max_write_zeroes_sectors: 52, max_discard_segments: 56,
});

impl Parameters {
    /// Whether a device that has these needs no others for a volume with `wanted`.
    pub(crate) fn is_like(&self, wanted: &Self) -> bool {
        let both = [self, wanted];
        let [known, wanted] =
            both.map(|it| (it.attributes & ATTRIBUTES, it.logical_block_shift, it.sectors));
        known == wanted
    }

    /// Why a device that has these, and is in use, must not get the data of a volume with `wanted`.
    pub(crate) fn hindrance(&self, wanted: &Self) -> Option<&'static str> {
        let has = |it: &Self, attribute| it.attributes & attribute != 0;
        if !has(self, ATTRIBUTE_READ_ONLY) && has(wanted, ATTRIBUTE_READ_ONLY) {
            Some("its writes would fail: the volume is read-only now")
        } else if !has(self, ATTRIBUTE_VOLATILE_CACHE) && has(wanted, ATTRIBUTE_VOLATILE_CACHE) {
            Some("the kernel would not flush the volume's cache, which it had not then")
        } else if wanted.sectors < self.sectors {
            Some("its end would be missing: the volume is smaller now")
        } else if wanted.logical_block_shift > self.logical_block_shift {
            Some("the volume's blocks are larger now")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn a_device_in_use_is_not_given_to_a_volume_that_cannot_keep_its_promises() {
        let known = Parameters {
            attributes: ATTRIBUTE_FUA,
            logical_block_shift: 9,
            sectors: 100,
            ..Parameters::new_zeroed()
        };
        assert!(known.is_like(&known) && known.hindrance(&known).is_none());
        let grown = Parameters { sectors: 101, ..known };
        assert!(!known.is_like(&grown) && known.hindrance(&grown).is_none());
        let worse = [
            Parameters { sectors: 99, ..known },
            Parameters { logical_block_shift: 12, ..known },
            Parameters { attributes: ATTRIBUTE_FUA | ATTRIBUTE_VOLATILE_CACHE, ..known },
            Parameters { attributes: ATTRIBUTE_FUA | ATTRIBUTE_READ_ONLY, ..known },
        ];
        for worse in worse {
            assert!(!known.is_like(&worse) && known.hindrance(&worse).is_some());
            // The volume of an earlier time was the worse one.
            assert!(worse.hindrance(&known).is_none());
        }
    }

    #[test]
    fn numbers_are_the_drivers() {
        // From a C compiler, with the header of Linux 6.12.
        assert_eq!((ADD_DEV, START_DEV, GET_DEV_INFO), (0xc020_7504, 0xc020_7506, 0x8020_7502));
        assert_eq!((GET_FEATURES, UPDATE_SIZE), (0x8020_7513, 0xc020_7515));
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }
}
