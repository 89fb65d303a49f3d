//! The memory of a guest with a virtqueue: what drivers write.

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Where the parts of a ring are in the guest's memory: available ring, descriptors, used ring, and its end.
pub(crate) fn places(size: u16) -> [usize; 4] {
    let available = 6 + 2 * usize::from(size);
    let descriptors = available.next_multiple_of(16);
    let used = descriptors + 16 * usize::from(size);
    [0, descriptors, used, used + 6 + 8 * usize::from(size)]
}

/// A descriptor of a virtqueue.
fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    join(&[&address.to_le_bytes(), &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()])
}

/// A guest's memory that begins at `start` with a ring: a read, a write, a flush, a discard or zeroes, the name of the disk. Their headers
/// are behind the ring; with `indirect` their descriptors are in tables.
pub(crate) fn memory(start: u64, size: u16, indirect: bool) -> Vec<u8> {
    const HEADERS: usize = 0x900;
    const TABLES: usize = 0xb00;
    const DATA: usize = 0x1000;
    let [_, descriptors, _, _] = places(size);
    let mut memory = vec![0; 0x3000];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    let range = join(&[&8_u64.to_le_bytes(), &4_u32.to_le_bytes(), &[0; 4]]);
    // Kind, sector, what the device reads, what it writes.
    let requests: [(u32, u64, Vec<u8>, &[u32]); 6] = [
        (0, 1, vec![], &[512, 512]),
        (1, 16, vec![0x5a; 1024], &[]),
        (4, 0, vec![], &[]),
        (11, 0, range.clone(), &[]),
        (13, 0, range, &[]),
        (8, 0, vec![], &[20]),
    ];
    let mut free = 0;
    let mut heads = Vec::new();
    for (number, (kind, sector, out, into)) in requests.iter().enumerate() {
        let header = HEADERS + 64 * number;
        put(header, &join(&[&kind.to_le_bytes(), &[0; 4], &sector.to_le_bytes()]));
        let data = DATA + 0x500 * number;
        let is_short = out.len() <= 16;
        // What names a range is with the headers: requests do not change it.
        let out_at = if is_short { header + 16 } else { data };
        put(out_at, out);
        let mut parts = vec![(header, 16, 0)];
        if !out.is_empty() {
            parts.push((out_at, out.len() as u32, 0));
        }
        let mut at = data;
        for len in *into {
            parts.push((at, *len, 2));
            at += *len as usize;
        }
        parts.push((data + 0x4ff, 1, 2));
        let count = parts.len() as u16;
        if !indirect && free + count > size || indirect && free == size {
            break;
        }
        let (table, first) =
            if indirect { (TABLES + 0x80 * number, 0) } else { (descriptors, free) };
        for (index, (place, len, flags)) in (first..).zip(&parts) {
            let is_last = index == first + count - 1;
            let flags = if is_last { *flags } else { flags | 1 };
            let entry = descriptor(start + *place as u64, *len, flags, index + 1);
            put(table + 16 * usize::from(index), &entry);
        }
        heads.push(free);
        if indirect {
            let entry = descriptor(start + table as u64, 16 * u32::from(count), 4, 0);
            put(descriptors + 16 * usize::from(free), &entry);
            free += 1;
        } else {
            free += count;
        }
    }
    put(2, &(heads.len() as u16).to_le_bytes());
    for (slot, head) in heads.iter().enumerate() {
        put(4 + 2 * slot, &head.to_le_bytes());
    }
    memory
}
