//! An image file as a modelled disk in virtual time: the file has the data, the model determines how long each I/O
//! takes. So the file may be larger than memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ashlar_block::buffer::scatter;
use ashlar_block::{
    BioResult, Disk, Driver, Gateway, Op, Queue, Request, Runtime, Sectors, Status,
};
use ashlar_sim::model::{Clockwork, Model};
use ashlar_sim::{Rng, Sim};

/// The driver; it takes reads only.
struct ModelledImage {
    file: Arc<File>,
    runtime: Arc<dyn Runtime>,
    clockwork: Mutex<(Clockwork, Rng)>,
}

impl Driver for ModelledImage {
    fn queue_rq(&self, rq: Request) {
        let now_ns = self.runtime.now_ns();
        let end_ns = {
            let mut clockwork = self.clockwork.lock().unwrap_or_else(PoisonError::into_inner);
            let (clockwork, rng) = &mut *clockwork;
            clockwork.end_ns(now_ns, rq.op(), rq.sector(), rq.len(), |n| rng.below(n))
        };
        let takes = self.runtime.sleep(Duration::from_nanos(end_ns - now_ns));
        let file = Arc::clone(&self.file);
        self.runtime.spawn(Box::pin(async move {
            takes.await;
            let result = execute(&file, &rq);
            rq.complete(result);
        }));
    }
}

fn execute(file: &File, rq: &Request) -> BioResult {
    match rq.op() {
        Op::Read => {}
        Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => return Err(Status::NotSupported),
    }
    let mut bytes = vec![0; rq.len().bytes() as usize];
    file.read_exact_at(&mut bytes, rq.sector().bytes()).map_err(|_| Status::Io)?;
    scatter(&bytes, rq.segments());
    Ok(())
}

/// A gateway to the image as a disk of that model, in the virtual time of `sim`. The image is the first part of a disk of
/// `size`, or all of a smaller one: a head moves as far as on that disk.
///
/// # Errors
/// The file cannot be opened.
pub(crate) fn open(path: &Path, model: Model, size: Sectors, sim: &Sim) -> io::Result<Gateway> {
    let file = File::open(path)?;
    let capacity = Sectors::from_bytes_floor(file.metadata()?.len());
    let clockwork = Clockwork::new(model, capacity.max(size));
    let clockwork = Mutex::new((clockwork, Rng::new(sim.seed())));
    let disk = Disk::new("disk", capacity, model.limits());
    let driver = ModelledImage { file: Arc::new(file), runtime: sim.runtime(), clockwork };
    Ok(Gateway::new(Arc::new(Queue::new(disk, driver))))
}
