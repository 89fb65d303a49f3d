//! The NBD handshake never panics, always makes progress, and answers each message with a bounded reply, however its
//! input is split. The first two bytes choose the size of the pieces.
use ashlar_export::nbd::context::ChangeMaps;
use ashlar_export::nbd::handshake::{Handshake, State, Step, TlsPolicy};
use ashlar_export::nbd::info::{BlockSize, ExportInfo};

fn export(name: &str, description: &str) -> ExportInfo {
    let block_size = BlockSize::with_preferred(4096);
    ExportInfo {
        name: name.into(),
        description: description.into(),
        size: 1 << 30,
        flags: 0x6f,
        block_size,
        changes: ChangeMaps::default(),
    }
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let [low, high, input @ ..] = data else { return false };
    let piece = 1 + usize::from(u16::from_be_bytes([*high, *low]));
    let exports = [export("md0", "raid10"), export("", "")];
    let mut handshake = Handshake::new(TlsPolicy::On);
    let (mut at, mut visible) = (0, 0);
    loop {
        let mut out = Vec::new();
        let (taken, step) = handshake.step(&input[at..visible], &exports, &mut out);
        at += taken;
        assert!(at <= visible, "took more than there was");
        assert!(out.len() < 1024, "a reply of {} bytes", out.len());
        match step {
            Step::Taken => assert!(taken > 0),
            Step::Tls => handshake.secured(),
            Step::Transmission(session) => {
                assert_eq!(handshake.state(), State::Transmission);
                assert!(
                    session.export < exports.len()
                        && (session.structured || session.contexts.is_empty())
                );
                return true;
            }
            Step::Closed(_) => {
                assert_eq!(handshake.state(), State::Closed);
                return false;
            }
            Step::Incomplete if visible == input.len() => return false,
            Step::Incomplete => visible = input.len().min(visible + piece),
        }
    }
}
