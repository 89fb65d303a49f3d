//! The client of NBD survives whatever a server sends: it does not panic, and each request ends.
//!
//! The first two bytes of the input say how many of the others the server sends at once, for the handshake. It sends the
//! rest when a request has come, and then ends the connection; also when none comes, or not in time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::time::Duration;
use std::{env, fs, io, panic, process, thread};

use ashlar_block::{Bio, Buffer, Gateway, Sector, Sectors};
use ashlar_engine::Reactor;
use ashlar_nbd::Uri;

/// Client flags, structured replies, one metadata context (which the client only asks for after structured replies), and GO with one
/// item, of the empty name.
const HANDSHAKE: usize = 4 + 16 + 43 + 16 + 8;
const REQUEST: usize = 28;
/// How long the server waits for the client.
const PATIENCE: Duration = Duration::from_millis(5);

/// Panics of the client's threads, which nothing else reports.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() == Some("ashlar-nbd") {
                PANICS.fetch_add(1, SeqCst);
            }
            others(info);
        }));
    });
}

fn serve(stream: &mut UnixStream, first: &[u8], then: &[u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(first)?;
    let (Ok(()) | Err(_)) = stream.read_exact(&mut [0; HANDSHAKE + REQUEST]);
    stream.write_all(then)
}

/// Checks one input against the module text; returns whether the export was opened.
pub fn run(data: &[u8]) -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let [high, low, input @ ..] = data else { return false };
    let first = usize::from(u16::from_be_bytes([*high, *low])).min(input.len());
    let (first, then) = (input[..first].to_vec(), input[first..].to_vec());
    count_panics();
    let panics = PANICS.load(SeqCst);
    let number = NEXT.fetch_add(1, SeqCst);
    let socket = env::temp_dir().join(format!("ashlar-fuzz-nbd-{}-{number}", process::id()));
    let listener = UnixListener::bind(&socket).expect("a socket");
    let server = thread::spawn(move || {
        if let Ok((mut stream, _)) = listener.accept() {
            let (Ok(()) | Err(_)) = serve(&mut stream, &first, &then);
            let (Ok(()) | Err(_)) = stream.shutdown(Shutdown::Both);
        }
    });
    let uri = Uri::parse(&format!("nbd+unix:///?socket={}", socket.display())).expect("a URI");
    let opened = ashlar_nbd::open(&uri, "disk", false);
    let is_open = opened.is_ok();
    if let Ok(disk) = opened {
        let disk = Gateway::new(Arc::new(disk));
        Reactor::new(Default::default()).expect("a reactor").block_on(async {
            let (Ok(_) | Err(_)) = disk.read(Sector(8), Sectors(8)).await;
            let mut data = Buffer::zeroed(4096);
            let write = disk.submit(Bio::write_from(Sector(0), &mut data));
            let (Ok(()) | Err(_)) = write.await;
            let (Ok(()) | Err(_)) = disk.flush().await;
            if let Ok(extents) = disk.extents(Sector(8), Sectors(800)).await {
                assert!(extents.end() > Sector(8) && extents.end() <= Sector(808));
            }
        });
    }
    server.join().expect("the server");
    fs::remove_file(&socket).expect("the socket");
    assert_eq!(PANICS.load(SeqCst), panics, "the client has panicked");
    is_open
}
