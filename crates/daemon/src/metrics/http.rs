//! The HTTP server of the metrics: one request for each connection.
//!
//! It runs on the main reactor. What a client can take is bounded: connections, the bytes of a request, and the time until the answer
//! is sent.

use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::rate_limited;
use ashlar_client::connection_slots::{ConnectionSlot, ConnectionSlots, Rank};
use ashlar_engine::net::{Listener, Socket};
use ashlar_engine::{spawn, timeout};

use super::head::{Head, Refusal, Wanted};

/// What is received at once, bytes.
const PART: usize = 2048;
/// The most bytes that a client may send after a head; they are discarded.
const MAX_REST: usize = 64 << 10;
/// The text format of Prometheus, which all scrapers read.
const PAGE_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most concurrent connections; a newcomer gets the place of the one that has waited longest for its client.
    pub(crate) connections: usize,
    /// The time from a connection's start to its end.
    pub(crate) deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16, deadline: Duration::from_secs(10) }
    }
}

/// Answers all connections, while the socket listens. `page` makes the text; with `None`, which is a defect, the answer is an error.
pub(crate) async fn serve<P>(listener: Listener, limits: Limits, page: P)
where
    P: AsyncFn() -> Option<String> + 'static,
{
    let page = Rc::new(page);
    let slots = ConnectionSlots::new(limits.connections, 0);
    let passing = |error: &io::Error| rate_limited!(warn, %error, "accepting a reader of metrics");
    loop {
        let socket = match listener.next(passing).await {
            Ok(socket) => socket,
            Err(error) => return tracing::error!(%error, "no more readers of metrics"),
        };
        let Ok(slot) = slots.take(socket, Rank::Guest) else {
            rate_limited!(warn, most = limits.connections, "too many readers of metrics");
            continue;
        };
        let page = Rc::clone(&page);
        spawn(async move {
            match timeout(limits.deadline, pin!(converse(&slot, &*page))).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "a reader of metrics is lost"),
                None => tracing::debug!("a reader of metrics took too long"),
            }
        })
        .detach();
    }
}

/// Serves one connection.
async fn converse(
    slot: &ConnectionSlot,
    page: &impl AsyncFn() -> Option<String>,
) -> io::Result<()> {
    let socket: &Socket = slot;
    let mut head = Head::default();
    let mut buffer = vec![0; PART];
    let wanted = loop {
        let (received, same) = socket.recv(buffer).await;
        buffer = same;
        match received? {
            0 => return Ok(()),
            len => {
                if let Some(wanted) = head.push(&buffer[..len]) {
                    break wanted;
                }
            }
        }
    };
    if !slot.work() {
        return Ok(());
    }
    let response = match wanted {
        Wanted::Page | Wanted::PageHead => match page().await {
            Some(text) => response("200 OK", PAGE_TYPE, "", &text, wanted == Wanted::Page),
            None => response("500 Internal Server Error", PLAIN_TYPE, "", "", true),
        },
        Wanted::Refusal(refusal) => refused(refusal),
    };
    // It is the client's turn again: a client that does not read its answer must not keep others out.
    slot.rest();
    socket.send_all(response).await.0?;
    // A connection that is closed while there is something to receive is reset, and the client might not see the answer.
    socket.shutdown(Shutdown::Write).await?;
    let mut rest = 0;
    while rest <= MAX_REST {
        let (received, same) = socket.recv(buffer).await;
        buffer = same;
        match received? {
            0 => break,
            len => rest += len,
        }
    }
    Ok(())
}

fn refused(refusal: Refusal) -> Vec<u8> {
    let (status, field, text) = match refusal {
        Refusal::Malformed => ("400 Bad Request", "", "this is not an HTTP/1.1 request\n"),
        Refusal::NotFound => ("404 Not Found", "", "the metrics are at /metrics\n"),
        Refusal::Method => {
            ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD are possible\n")
        }
        Refusal::TooLong => {
            ("431 Request Header Fields Too Large", "", "the head of the request is too long\n")
        }
    };
    response(status, PLAIN_TYPE, field, text, true)
}

/// A response. `field` is a further line of its head; without `has_body` it only gives the length of its body.
fn response(status: &str, media: &str, field: &str, body: &str, has_body: bool) -> Vec<u8> {
    let len = body.len();
    let body = if has_body { body } else { "" };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len}\r\n{field}Connection: close\r\n\r\n{body}"
    );
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use ashlar_client::stop::Stop;
    use ashlar_disks as disks;

    const GET: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";

    /// Serves `text` while `clients` runs.
    fn with_server(limits: Limits, text: String, clients: impl FnOnce(SocketAddr)) {
        let stop = Stop::default();
        let (sender, address) = mpsc::channel();
        std::thread::scope(|scope| {
            let ended = stop.clone();
            scope.spawn(move || {
                disks::reactor().unwrap().block_on(async {
                    let listener = Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
                    sender.send(listener.local_addr().unwrap()).unwrap();
                    let server = spawn(serve(listener, limits, async move || Some(text.clone())));
                    ended.await;
                    server.cancel().await;
                });
            });
            // Ends the server if a client panics, too.
            struct Ends(Stop);
            impl Drop for Ends {
                fn drop(&mut self) {
                    self.0.stop();
                }
            }
            let ends = Ends(stop);
            clients(address.recv().unwrap());
            drop(ends);
        });
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// All that the server sends; ignores errors, because a server may reset a connection.
    fn rest(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
        String::from_utf8(bytes).unwrap()
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(address);
        stream.write_all(request).unwrap();
        rest(stream)
    }

    #[test]
    fn a_page_is_sent_whole_and_its_head_alone() {
        let text = "x 1\n".repeat(1 << 20);
        with_server(Limits::default(), text.clone(), |address| {
            let answer = ask(address, GET);
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(body == text);
            let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                            Content-Length: 4194304\r\nConnection: close";
            assert_eq!(head, expected);
            let answer = ask(address, b"HEAD /metrics HTTP/1.0\r\n\r\n");
            assert_eq!(answer, format!("{expected}\r\n\r\n"));
        });
    }

    #[test]
    fn a_client_that_sends_too_much_sees_the_refusal() {
        with_server(Limits::default(), String::new(), |address| {
            let answer = ask(address, &[&b"GET /"[..], &[b'x'; 20_000]].concat());
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
            // More than the server throws away: it closes the connection.
            let mut stream = connect(address);
            let result = (0..1000).try_for_each(|_| stream.write_all(&[b'x'; 65536]));
            assert!(result.is_err(), "the server takes all that it gets");
        });
    }

    #[test]
    fn slow_clients_keep_no_other_out_and_end_at_the_deadline() {
        let limits = Limits { connections: 3, deadline: Duration::from_millis(800) };
        // More than sockets hold.
        let text = "y".repeat(64 << 20);
        with_server(limits, text, |address| {
            let begun = Instant::now();
            let silent = connect(address);
            let mut slow = connect(address);
            slow.write_all(b"GET /metr").unwrap();
            let mut deaf = connect(address);
            deaf.write_all(GET).unwrap();
            // The first byte of the page: it is the client's turn to take the rest.
            deaf.read_exact(&mut [0]).unwrap();
            // Others get the places of those that have waited longest.
            for _ in 0..3 {
                let answer = ask(address, b"GET / HTTP/1.0\r\n\r\n");
                assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
            }
            assert_eq!(rest(silent), "");
            // One that keeps its place ends, too.
            let late = connect(address);
            let since = Instant::now();
            assert_eq!(rest(late), "");
            assert!(since.elapsed() >= limits.deadline);
            assert_eq!(rest(slow), "");
            assert!(rest(deaf).len() < 64 << 20, "what it did not take in time is lost");
            assert!(begun.elapsed() < Duration::from_secs(20));
        });
    }
}
