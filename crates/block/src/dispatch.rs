//! What the plug asks a queue for.

use std::sync::Arc;

use crate::bio::Op;
use crate::buffer::Segment;
use crate::disk::Disk;
use crate::request::{Request, RequestId};
use crate::runtime::Runtime;

/// The plug's interface to a queue.
pub(crate) trait Dispatch: Send + Sync {
    fn disk(&self) -> &Disk;
    fn issue(&self, rq: Request);
    fn commit(&self);
    fn abort(&self, id: RequestId);
    fn read_memory(&self, len: usize) -> ReadMemory;
    fn revoke(&self, id: RequestId) -> bool;
    /// How long a request may take; `None` on a queue without a deadline.
    fn timeout_ns(&self, op: Op) -> Option<u64>;
    /// What runs the timers of the deadlines.
    fn runtime(&self) -> Option<&Arc<dyn Runtime>>;
}

/// Where a queue with a deadline puts the data of a read. After the deadline the submitters may reuse their memory.
pub enum ReadMemory {
    /// To memory of the queue, from which they are copied.
    Queue,
    /// To this memory of the driver, of the read's length, which it reads into faster than into other memory; also copied.
    Driver(Segment),
    /// To the submitters' memory: the driver can [release](crate::queue::Driver::revoke) it.
    Submitters,
}
