//! libblkio's driver as the client: the judge that does not know this device.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use ashlar_block::buffer::gather;
use ashlar_engine::memfd::Memfd;
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use crate::server::{DISK_BYTES, Server, Slow};

/// Bytes of each request.
const BLOCK: usize = 16384;
/// Requests of a queue at a time.
const DEPTH: usize = 16;

struct Memory(Memfd);

impl Memory {
    fn new(transport: &mut VirtioBlkTransport, len: usize) -> Self {
        let memory = Memfd::new(c"driver", len).unwrap();
        transport.map_mem_region(memory.address as usize, len, memory.file.as_raw_fd(), 0).unwrap();
        Self(memory)
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        NonNull::new((self.0.address as usize + offset) as *mut u8).unwrap()
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        self.0.memory.segment(offset..offset + bytes.len()).unwrap().copy_from(bytes);
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        gather(&[self.0.memory.segment(offset..offset + len).unwrap()], &mut bytes);
        bytes
    }
}

/// Signals the device, and waits until `count` requests have ended; all succeed.
fn finish(
    transport: &VirtioBlkTransport,
    queue: &mut VirtioBlkQueue<'_, usize>,
    index: usize,
    count: usize,
) -> Vec<usize> {
    transport.get_submission_notifier(index).notify().unwrap();
    let mut contexts = Vec::new();
    loop {
        for completion in queue.completions() {
            assert_eq!(completion.ret, 0);
            contexts.push(completion.context);
        }
        if contexts.len() >= count {
            contexts.sort_unstable();
            return contexts;
        }
        // Blocks until the device signals.
        transport.get_completion_fd(index).read().unwrap();
    }
}

fn block(round: usize, queue: usize, slot: usize) -> Vec<u8> {
    let seed = round * 1000 + queue * 100 + slot;
    (0..BLOCK).map(|at| (at * 7 + at / 256 + seed) as u8).collect()
}

fn drive(features: VirtioFeatureFlags) {
    let server = Server::of(Slow::new().volume());
    let wanted = features.bits()
        | (VirtioBlkFeatureFlags::FLUSH
            | VirtioBlkFeatureFlags::MQ
            | VirtioBlkFeatureFlags::DISCARD
            | VirtioBlkFeatureFlags::WRITE_ZEROES
            | VirtioBlkFeatureFlags::BLK_SIZE)
            .bits();
    let transport = VhostUser::new(server.path.to_str().unwrap(), wanted).unwrap();
    let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
    assert_eq!(transport.max_queues(), Some(4));
    let config = transport.get_config().unwrap();
    assert_eq!(u64::from(config.capacity) * 512, DISK_BYTES);
    let mut queues = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 4, 128).unwrap();
    // Memory comes while the queues run.
    let memory = Memory::new(&mut *transport, 4 * DEPTH * BLOCK);
    let place = |queue: usize, slot: usize| (queue * DEPTH + slot) * BLOCK;
    let all: Vec<usize> = (0..DEPTH).collect();
    for queue in &mut queues {
        queue.set_used_notif_enabled(true);
    }
    for round in 0..8 {
        for (index, queue) in queues.iter_mut().enumerate() {
            for slot in 0..DEPTH {
                let at = place(index, slot);
                memory.put(at, &block(round, index, slot));
                // SAFETY: the memory lives longer than the request, and nobody else uses it.
                unsafe { queue.write_raw(at as u64, memory.at(at).as_ptr(), BLOCK, slot) }.unwrap();
            }
        }
        for (index, queue) in queues.iter_mut().enumerate() {
            assert_eq!(finish(&*transport, queue, index, DEPTH), all);
            queue.flush(99).unwrap();
            assert_eq!(finish(&*transport, queue, index, 1), [99]);
        }
        // Each queue reads what another one wrote.
        for (index, queue) in queues.iter_mut().enumerate() {
            for slot in 0..DEPTH {
                let (to, from) = (place(index, slot), place(3 - index, slot));
                // SAFETY: as above.
                unsafe { queue.read_raw(from as u64, memory.at(to).as_ptr(), BLOCK, slot) }
                    .unwrap();
            }
        }
        for (index, queue) in queues.iter_mut().enumerate() {
            assert_eq!(finish(&*transport, queue, index, DEPTH), all);
            for slot in 0..DEPTH {
                assert!(memory.get(place(index, slot), BLOCK) == block(round, 3 - index, slot));
            }
        }
    }
    let queue = &mut queues[2];
    queue.write_zeroes(0, BLOCK as u64, false, 0).unwrap();
    queue.write_zeroes(BLOCK as u64, BLOCK as u64, true, 1).unwrap();
    queue.discard(2 * BLOCK as u64, BLOCK as u64, 2).unwrap();
    assert_eq!(finish(&*transport, queue, 2, 3), [0, 1, 2]);
    // SAFETY: as above.
    unsafe { queue.read_raw(0, memory.at(0).as_ptr(), 4 * BLOCK, 3) }.unwrap();
    assert_eq!(finish(&*transport, queue, 2, 1), [3]);
    let read = memory.get(0, 4 * BLOCK);
    assert!(read[..3 * BLOCK].iter().all(|byte| *byte == 0));
    assert!(read[3 * BLOCK..] == block(7, 0, 3));
    transport.unmap_mem_region(memory.0.address as usize, 4 * DEPTH * BLOCK).unwrap();
    drop(queues);
    drop(transport);
    server.stop();
}

#[test]
fn libblkios_driver_reads_what_it_wrote_with_event_indexes() {
    drive(VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX);
}

#[test]
fn libblkios_driver_reads_what_it_wrote_without_event_indexes() {
    drive(VirtioFeatureFlags::VERSION_1);
}
