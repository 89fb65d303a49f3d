//! The memory of buffers when threads end.

use ashlar_block::Buffer;

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).expect("VmRSS");
    kib.parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_thread_that_ends_gives_back_the_memory_it_kept_for_its_next_buffers() {
    const BYTES: usize = 8 << 20;
    const THREADS: u64 = 32;
    let before = resident();
    for _ in 0..THREADS {
        let thread = std::thread::spawn(|| drop(Buffer::from_slice(&vec![1; BYTES])));
        thread.join().expect("it does not panic");
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < THREADS / 4 * BYTES as u64, "{THREADS} threads left {grown} bytes");
}
