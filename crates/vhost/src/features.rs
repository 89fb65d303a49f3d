//! Features of the protocol, and the names of those that a front end must not turn on.

use vhost::vhost_user::{VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures};

use crate::violation::Violation;

/// The virtio feature that turns the protocol's features on.
pub(crate) const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// The protocol features of the device.
pub(crate) const OFFERED: Protocol = Protocol::MQ
    .union(Protocol::CONFIG)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::INFLIGHT_SHMFD)
    .union(Protocol::BACKEND_REQ)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .union(Protocol::RESET_DEVICE);

fn check(bits: u64, names: impl Fn(u64) -> String) -> Result<(), Violation> {
    if bits == 0 { Ok(()) } else { Err(Violation::Features(names(bits))) }
}

/// Refuses the protocol features of `bits`, if any, by their names.
pub(crate) fn check_protocol(bits: u64) -> Result<(), Violation> {
    check(bits, protocol_names)
}

/// Refuses the virtio features of `bits`, if any, by their names.
pub(crate) fn check_virtio(bits: u64) -> Result<(), Violation> {
    check(bits, virtio_names)
}

fn protocol_names(bits: u64) -> String {
    named(bits, |bit| {
        Protocol::from_bits_truncate(1 << bit).iter_names().next().map(|(name, _)| name)
    })
}

fn virtio_names(bits: u64) -> String {
    named(bits, |bit| match bit {
        5 => Some("VIRTIO_BLK_F_RO"),
        11 => Some("VIRTIO_BLK_F_CONFIG_WCE"),
        13 => Some("VIRTIO_BLK_F_DISCARD"),
        14 => Some("VIRTIO_BLK_F_WRITE_ZEROES"),
        26 => Some("VHOST_F_LOG_ALL (migration)"),
        33 => Some("VIRTIO_F_ACCESS_PLATFORM"),
        34 => Some("VIRTIO_F_RING_PACKED"),
        35 => Some("VIRTIO_F_IN_ORDER"),
        _ => None,
    })
}

fn named(bits: u64, name: impl Fn(u32) -> Option<&'static str>) -> String {
    let set = (0..u64::BITS).filter(|bit| bits & 1 << bit != 0);
    let names: Vec<String> =
        set.map(|bit| name(bit).map_or_else(|| format!("bit {bit}"), str::to_owned)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_offered_is_refused_by_its_name() {
        let refused = |bits, names: fn(u64) -> String| check(bits, names).unwrap_err().to_string();
        let text = refused(1 << 26 | 1 << 34 | 1 << 60, virtio_names);
        let wanted = "the features VHOST_F_LOG_ALL (migration), VIRTIO_F_RING_PACKED, bit 60, which this device does not offer";
        assert_eq!(text, wanted);
        let migration = Protocol::LOG_SHMFD | Protocol::PAGEFAULT | Protocol::INBAND_NOTIFICATIONS;
        let text = refused(migration.bits(), protocol_names);
        assert!(text.starts_with("the features LOG_SHMFD, PAGEFAULT, INBAND_NOTIFICATIONS, which"));
        assert!(check_virtio(0).is_ok());
    }
}
