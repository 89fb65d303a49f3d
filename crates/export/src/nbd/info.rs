//! What the handshake reports about an export: the `NBD_INFO_*` items.

use super::context::ChangeMaps;
use ashlar_nbd::wire::{
    FLAG_HAS_FLAGS, FLAG_SEND_DF, FLAG_SEND_FAST_ZERO, FLAG_SEND_WRITE_ZEROES, INFO_BLOCK_SIZE,
    INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME, MAX_PAYLOAD,
};

/// "Size constraints" of the protocol document, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSize {
    /// The alignment that requests must have. Always 1: the volume does read-modify-write where a client is less
    /// aligned than the device.
    pub minimum: u32,
    /// The alignment that avoids read-modify-write: a power of two, at least 512.
    pub preferred: u32,
    /// Longest payload of one request.
    pub maximum: u32,
}

impl BlockSize {
    /// The size constraints of an export whose efficient I/O size is `preferred` bytes, rounded up to an allowed value
    /// (a power of two from 512 to the maximum payload).
    pub fn with_preferred(preferred: u32) -> Self {
        let preferred = preferred.clamp(512, MAX_PAYLOAD).next_power_of_two();
        Self { minimum: 1, preferred, maximum: MAX_PAYLOAD }
    }
}

/// An export as the handshake sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The name clients ask for. A string of the protocol: at most 4096 bytes, no NUL.
    pub name: String,
    /// Shown by `nbdinfo` and the like; may be empty.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Transmission flags without `SEND_DF`, which depends on the connection.
    pub flags: u16,
    /// Size constraints.
    pub block_size: BlockSize,
    /// The snapshots of which it can tell the changes.
    pub changes: ChangeMaps,
}

impl ExportInfo {
    /// The transmission flags for a connection, made consistent as the protocol requires: `DF` needs structured
    /// replies, `FAST_ZERO` needs `WRITE_ZEROES`.
    pub const fn transmission_flags(&self, structured: bool) -> u16 {
        let mut flags = (self.flags | FLAG_HAS_FLAGS) & !FLAG_SEND_DF;
        if flags & FLAG_SEND_WRITE_ZEROES == 0 {
            flags &= !FLAG_SEND_FAST_ZERO;
        }
        if structured { flags | FLAG_SEND_DF } else { flags }
    }

    /// The payload of an `NBD_REP_INFO` for the item `kind`; `None` if the export has no such item.
    pub(crate) fn item(&self, kind: u16, structured: bool) -> Option<Vec<u8>> {
        let mut item = kind.to_be_bytes().to_vec();
        match kind {
            INFO_EXPORT => {
                item.extend(self.size.to_be_bytes());
                item.extend(self.transmission_flags(structured).to_be_bytes());
            }
            INFO_NAME => item.extend(self.name.as_bytes()),
            INFO_DESCRIPTION if !self.description.is_empty() => {
                item.extend(self.description.as_bytes())
            }
            INFO_BLOCK_SIZE => {
                let BlockSize { minimum, preferred, maximum } = self.block_size;
                for size in [minimum, preferred, maximum] {
                    item.extend(size.to_be_bytes());
                }
            }
            _ => return None,
        }
        Some(item)
    }
}

/// The export that a client selects with `name`, as an index into `exports`. The empty name selects an export of that
/// name if there is one, else the only export if there is only one.
pub fn find(exports: &[ExportInfo], name: &str) -> Option<usize> {
    let exact = exports.iter().position(|export| export.name == name);
    exact.or_else(|| (name.is_empty() && exports.len() == 1).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, flags: u16) -> ExportInfo {
        let block_size = BlockSize::with_preferred(4096);
        ExportInfo {
            name: name.into(),
            description: String::new(),
            size: 1 << 20,
            flags,
            block_size,
            changes: ChangeMaps::default(),
        }
    }

    #[test]
    fn flags_that_depend_on_others_follow_them() {
        let info = export("a", FLAG_SEND_FAST_ZERO | FLAG_SEND_DF);
        assert_eq!(info.transmission_flags(false), FLAG_HAS_FLAGS);
        assert_eq!(info.transmission_flags(true), FLAG_HAS_FLAGS | FLAG_SEND_DF);
        let zeroes = FLAG_SEND_FAST_ZERO | FLAG_SEND_WRITE_ZEROES;
        assert_eq!(export("a", zeroes).transmission_flags(false), FLAG_HAS_FLAGS | zeroes);
    }

    #[test]
    fn the_preferred_size_is_made_a_legal_one() {
        let preferred = |n| BlockSize::with_preferred(n).preferred;
        assert_eq!(
            [0, 1, 512, 3 * 4096, u32::MAX].map(preferred),
            [512, 512, 512, 16384, MAX_PAYLOAD]
        );
    }

    #[test]
    fn the_empty_name_means_the_only_export_unless_one_is_so_named() {
        let (a, b, unnamed) = (export("a", 0), export("b", 0), export("", 0));
        assert_eq!(find(std::slice::from_ref(&a), ""), Some(0));
        assert_eq!(find(&[a.clone(), b.clone()], ""), None);
        assert_eq!(find(&[a.clone(), unnamed], ""), Some(1));
        assert_eq!(find(&[a, b], "b"), Some(1));
        assert_eq!(find(&[], ""), None);
    }

    #[test]
    fn items_without_content_and_unknown_ones_are_left_out() {
        let info = export("a", 0);
        assert_eq!(info.item(INFO_DESCRIPTION, false), None);
        assert_eq!(info.item(77, false), None);
        assert_eq!(info.item(INFO_NAME, false), Some(vec![0, 1, b'a']));
        assert_eq!(info.item(INFO_BLOCK_SIZE, false).map(|item| item.len()), Some(14));
        assert_eq!(info.item(INFO_EXPORT, false).map(|item| item.len()), Some(12));
    }
}
