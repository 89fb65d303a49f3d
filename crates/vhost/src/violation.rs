//! Why a connection ended other than by its front end's wish.

use std::io;

use vhost::vhost_user::message::FrontendReq;

use crate::fault::Fault;
use crate::memory::BadMemory;

/// See the module text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("a message ends early")]
    Truncated,
    #[error("a request with the unknown number {0}")]
    Unknown(u32),
    #[error("a message with the flags {0:#x}")]
    Flags(u32),
    #[error("{0:?} of {1} bytes")]
    Size(FrontendReq, usize),
    #[error("{0:?} with an invalid body")]
    Body(FrontendReq),
    #[error("a message with {0} descriptors")]
    Files(usize),
    #[error("{0:?}, which this device does not offer")]
    NotOffered(FrontendReq),
    #[error("{request:?} without the protocol feature {feature}")]
    NotNegotiated { request: FrontendReq, feature: &'static str },
    #[error("the features {0}, which this device does not offer")]
    Features(String),
    #[error("queue {0}, which this device does not have")]
    NoQueue(u32),
    #[error("queue {0} of {1} descriptors: it may have a power of two, at most 1024")]
    QueueSize(u16, u32),
    #[error("{0:?} for queue {1}, which runs")]
    Runs(FrontendReq, u16),
    #[error("queue {0} without a descriptor for its driver's events: polling is not offered")]
    NoKick(u16),
    #[error("{0:?} with a descriptor that is not an event descriptor")]
    NoEvent(FrontendReq),
    #[error("queue {0} with VHOST_VRING_F_LOG: a log of changed memory (migration) is not offered")]
    Log(u16),
    #[error("queue {0} that begins at {1}: it has a split ring, whose index has 16 bits")]
    Base(u16, u32),
    #[error("{0:?}: {1}")]
    Memory(FrontendReq, BadMemory),
    #[error("queue {0}: {1}")]
    Ring(u16, Fault),
    #[error("queue {0} has ended with its thread")]
    Lost(u16),
    #[error("an inflight region for {queues} queues of {size} descriptors")]
    Inflight { queues: u16, size: u16 },
}
