//! A client that loads a vhost-user-blk device at a constant queue depth, and prints how many requests the device completed in a second.
//!
//! Usage: `vhost-load SOCKET --rw read|write|randread|randwrite [--bs BYTES] [--depth REQUESTS] [--queues COUNT] [--seconds SECONDS]`
//!
//! The driver is libblkio's (`virtio-driver`). The client polls the rings of completions, as libblkio does for a reactor that polls, and
//! wants no signal: it never sleeps, so it takes a whole processor. It signals the device only when that asks for it, once for all
//! requests that it makes available together. So the device is what is measured, if it has another processor. It is for
//! `benches/exports.py`.

#![allow(unsafe_code)]

use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ashlar_engine::memfd::Memfd;
use clap::{Parser, ValueEnum};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Descriptors of a request: header, data, status.
const DESCRIPTORS: usize = 3;
/// Rounds between two looks at the clock.
const ROUNDS: u32 = 64;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pattern {
    Read,
    Write,
    Randread,
    Randwrite,
}

/// Loads a vhost-user-blk device, and prints the requests that it completed in a second.
#[derive(Parser)]
struct Load {
    /// The device's socket.
    socket: String,
    /// The requests, one after the other or anywhere.
    #[arg(long)]
    rw: Pattern,
    /// Bytes of a request.
    #[arg(long, default_value_t = 4096)]
    bs: usize,
    /// Requests in flight on each queue.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Queues.
    #[arg(long, default_value_t = 1)]
    queues: usize,
    /// How long it runs.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
}

/// Offsets, one after the other or anywhere (xorshift64: the client must cost nothing).
struct Offsets {
    blocks: u64,
    block_bytes: u64,
    next: u64,
    is_random: bool,
}

impl Offsets {
    fn next(&mut self) -> u64 {
        if !self.is_random {
            self.next = (self.next + 1) % self.blocks;
            return self.next * self.block_bytes;
        }
        self.next ^= self.next << 13;
        self.next ^= self.next >> 7;
        self.next ^= self.next << 17;
        self.next % self.blocks * self.block_bytes
    }
}

/// A queue, and what signals its device.
struct Worker<'a> {
    queue: VirtioBlkQueue<'a, usize>,
    notifier: Box<dyn QueueNotifier>,
    /// The number of the first of its buffers.
    first: usize,
}

/// The requests in flight, and the memory they have.
struct Client {
    memory: Memfd,
    offsets: Offsets,
    is_write: bool,
    block: usize,
}

impl Client {
    /// Makes a request with the memory number `slot` available.
    fn submit(&mut self, queue: &mut VirtioBlkQueue<'_, usize>, slot: usize) -> Outcome<()> {
        let offset = self.offsets.next();
        let address = self.memory.address as usize + slot * self.block;
        // SAFETY: the memory lives longer than the connection, and a slot has one request at a time.
        unsafe {
            if self.is_write {
                queue.write_raw(offset, address as *const u8, self.block, slot)?;
            } else {
                queue.read_raw(offset, address as *mut u8, self.block, slot)?;
            }
        }
        Ok(())
    }
}

fn signal(worker: &mut Worker<'_>) -> Outcome<()> {
    if worker.queue.avail_notif_needed() {
        worker.notifier.notify()?;
    }
    Ok(())
}

/// Keeps the depth on all queues for the time given; the requests completed in it.
fn run(load: &Load, client: &mut Client, workers: &mut [Worker<'_>]) -> Outcome<u64> {
    for worker in workers.iter_mut() {
        worker.queue.set_used_notif_enabled(false);
        for slot in worker.first..worker.first + load.depth {
            client.submit(&mut worker.queue, slot)?;
        }
        signal(worker)?;
    }
    let end = Instant::now() + Duration::try_from_secs_f64(load.seconds)?;
    let (mut completed, mut free) = (0, Vec::with_capacity(load.depth));
    while Instant::now() < end {
        for _ in 0..ROUNDS {
            for worker in workers.iter_mut() {
                for completion in worker.queue.completions() {
                    if completion.ret != 0 {
                        return Err(format!("a request failed: {}", completion.ret).into());
                    }
                    free.push(completion.context);
                }
                if free.is_empty() {
                    std::hint::spin_loop();
                    continue;
                }
                completed += free.len() as u64;
                for slot in free.drain(..) {
                    client.submit(&mut worker.queue, slot)?;
                }
                signal(worker)?;
            }
        }
    }
    // Some devices do not survive a driver that leaves before its requests are completed.
    for worker in workers {
        let mut in_flight = load.depth;
        while in_flight > 0 {
            in_flight -= worker.queue.completions().count();
        }
    }
    Ok(completed)
}

fn main() -> Outcome<()> {
    let load = Load::parse();
    if load.bs == 0 || !load.bs.is_multiple_of(512) || load.depth == 0 || load.queues == 0 {
        return Err("bs must be a number of sectors, depth and queues must not be 0".into());
    }
    let wanted = VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX;
    let wanted = wanted.bits() | (Blk::FLUSH | Blk::MQ | Blk::BLK_SIZE).bits();
    let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(&load.socket, wanted)?);
    let device_bytes = u64::from(transport.get_config()?.capacity) * 512;
    let blocks = device_bytes / load.bs as u64;
    if blocks == 0 {
        return Err("the device is shorter than a request".into());
    }
    let size = (DESCRIPTORS * load.depth).next_power_of_two().max(16);
    let size = u16::try_from(size)?;
    let queues = VirtioBlkQueue::setup_queues(&mut *transport, load.queues, size)?;
    let len = load.queues * load.depth * load.bs;
    let memory = Memfd::new(c"vhost-load", len)?;
    let start = memory.address as usize;
    // Pages are found before it begins.
    memory.memory.segment(0..len).ok_or("no memory")?.copy_from(&vec![0x5a; len]);
    transport.map_mem_region(start, len, memory.file.as_raw_fd(), 0)?;
    let mut workers: Vec<Worker<'_>> = (0..)
        .zip(queues)
        .map(|(index, queue)| Worker {
            queue,
            notifier: transport.get_submission_notifier(index),
            first: index * load.depth,
        })
        .collect();
    let is_random = matches!(load.rw, Pattern::Randread | Pattern::Randwrite);
    let next = 0x9e37_79b9_7f4a_7c15 % if is_random { u64::MAX } else { blocks };
    let offsets = Offsets { blocks, block_bytes: load.bs as u64, next, is_random };
    let is_write = matches!(load.rw, Pattern::Write | Pattern::Randwrite);
    let mut client = Client { memory, offsets, is_write, block: load.bs };
    let completed = run(&load, &mut client, &mut workers)?;
    transport.unmap_mem_region(start, len)?;
    println!("{:.0}", completed as f64 / load.seconds);
    Ok(())
}
