//! The head of an HTTP request: where it ends, and what it asks for.

use httparse::{EMPTY_HEADER, Error, Request, Status};

/// The longest head, bytes.
pub(super) const MAX_HEAD: usize = 8 << 10;
/// The most fields of a head.
const MAX_FIELDS: usize = 64;
/// Where the metrics are.
const PATH: &str = "/metrics";

/// What a request is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// The metrics.
    Page,
    /// The head of the answer with the metrics.
    PageHead,
    /// No metrics.
    Refusal(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It is not HTTP.
    Malformed,
    /// There is nothing at its path.
    NotFound,
    /// Its method is neither GET nor HEAD.
    Method,
    /// Its head is too long.
    TooLong,
}

/// What has been received of a head.
#[derive(Default)]
pub(super) struct Head {
    bytes: Vec<u8>,
}

impl Head {
    /// Adds bytes; returns what is wanted once the head is complete, or cannot become valid any more. It must then not get more
    /// bytes. So it never has more than the longest head and one part.
    pub(super) fn push(&mut self, part: &[u8]) -> Option<Wanted> {
        // The end may have begun before this part.
        let from = self.bytes.len().saturating_sub(2);
        self.bytes.extend_from_slice(part);
        match end(&self.bytes, from) {
            Some(end) if end <= MAX_HEAD => Some(wanted(&self.bytes[..end])),
            Some(_) => Some(Wanted::Refusal(Refusal::TooLong)),
            None if self.bytes.len() > MAX_HEAD => Some(Wanted::Refusal(Refusal::TooLong)),
            None => None,
        }
    }
}

/// Behind the first empty line that begins at or behind `from`. Each byte is looked at once, however small the parts are.
fn end(bytes: &[u8], from: usize) -> Option<usize> {
    (from..bytes.len()).find_map(|at| match &bytes[at..] {
        [b'\n', b'\n', ..] => Some(at + 2),
        [b'\n', b'\r', b'\n', ..] => Some(at + 3),
        [..] => None,
    })
}

/// What a complete head asks for.
fn wanted(head: &[u8]) -> Wanted {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Err(Error::TooManyHeaders) => return Wanted::Refusal(Refusal::TooLong),
        Ok(Status::Partial) | Err(_) => return Wanted::Refusal(Refusal::Malformed),
    }
    let hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    // RFC 9112, 3.2.
    let needs_host = request.version == Some(1);
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Wanted::Refusal(Refusal::Malformed);
    };
    match (hosts.count(), method) {
        (0, _) if needs_host => Wanted::Refusal(Refusal::Malformed),
        (2.., _) => Wanted::Refusal(Refusal::Malformed),
        _ if path(target) != PATH => Wanted::Refusal(Refusal::NotFound),
        (_, "GET") => Wanted::Page,
        (_, "HEAD") => Wanted::PageHead,
        _ => Wanted::Refusal(Refusal::Method),
    }
}

/// The path of a target, which may be a whole URI, as proxies send it, and may have a query.
fn path(target: &str) -> &str {
    let absolute = target.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?']));
    let target = match absolute {
        Some((_, rest)) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    target.split('?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted after `bytes` in parts of this length, and how many bytes it took.
    fn read(bytes: &[u8], part: usize) -> (Option<Wanted>, usize) {
        let (mut head, mut taken) = (Head::default(), 0);
        for part in bytes.chunks(part) {
            taken += part.len();
            if let Some(wanted) = head.push(part) {
                return (Some(wanted), taken);
            }
        }
        (None, taken)
    }

    fn wanted_by(text: &str) -> Option<Wanted> {
        let whole = read(text.as_bytes(), text.len().max(1)).0;
        for part in [1, 2, 3, 7] {
            assert_eq!(read(text.as_bytes(), part).0, whole, "{text:?} in parts of {part}");
        }
        whole
    }

    #[test]
    fn get_and_head_of_the_metrics_are_answered() {
        for text in [
            "GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\n\r\n",
            "GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOsT:\r\n\r\n",
            "GET /metrics?name[]=x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET http://a:9100/metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /metrics HTTP/1.0\r\n\r\n",
            "GET /metrics HTTP/1.0\n\n",
            "\r\nGET /metrics HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(wanted_by(text), Some(Wanted::Page), "{text:?}");
        }
        let head = "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(wanted_by(head), Some(Wanted::PageHead));
    }

    #[test]
    fn other_requests_are_refused_for_the_right_reason() {
        let many = "X: y\r\n".repeat(MAX_FIELDS + 1);
        let cases = [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NotFound),
            ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NotFound),
            ("GET /Metrics HTTP/1.0\r\n\r\n", Refusal::NotFound),
            ("GET /?/metrics HTTP/1.0\r\n\r\n", Refusal::NotFound),
            ("GET http://a HTTP/1.0\r\n\r\n", Refusal::NotFound),
            ("GET /x?u=http://a/metrics HTTP/1.0\r\n\r\n", Refusal::NotFound),
            ("POST /x HTTP/1.0\r\n\r\n", Refusal::NotFound),
            ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", Refusal::Method),
            ("get /metrics HTTP/1.0\r\n\r\n", Refusal::Method),
            ("OPTIONS /metrics HTTP/1.0\r\n\r\n", Refusal::Method),
            ("GET /metrics HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::Malformed),
            ("GET /metrics HTTP/2.0\r\n\r\n", Refusal::Malformed),
            ("GET /metrics\r\n\r\n", Refusal::Malformed),
            ("GET /metrics HTTP/1.0\r\nno colon\r\n\r\n", Refusal::Malformed),
            ("GET /metrics HTTP/1.0\r\nX: \u{1}\r\n\r\n", Refusal::Malformed),
            ("\r\n\r\n", Refusal::Malformed),
            ("\u{16}\u{3}\u{1}\n\n", Refusal::Malformed),
            (&format!("GET /metrics HTTP/1.0\r\n{many}\r\n"), Refusal::TooLong),
        ];
        for (text, refusal) in cases {
            assert_eq!(wanted_by(text), Some(Wanted::Refusal(refusal)), "{text:?}");
        }
    }

    #[test]
    fn a_head_ends_with_its_empty_line_and_is_not_too_long() {
        let head = |len: usize| {
            let (start, end) = ("GET /metrics HTTP/1.0\r\nX: ", "\r\n\r\n");
            format!("{start}{}{end}", "y".repeat(len - start.len() - end.len()))
        };
        assert_eq!(wanted_by(&head(MAX_HEAD)), Some(Wanted::Page));
        assert_eq!(wanted_by(&head(MAX_HEAD + 1)), Some(Wanted::Refusal(Refusal::TooLong)));
        // Without an end it is refused as soon as it is too long.
        let endless = vec![b'y'; 1 << 20];
        let refused = Some(Wanted::Refusal(Refusal::TooLong));
        assert_eq!(read(&endless, 100), (refused, MAX_HEAD.next_multiple_of(100)));
        assert_eq!(read(&endless[..MAX_HEAD], 100), (None, MAX_HEAD));
        // What follows the head does not matter.
        assert_eq!(
            wanted_by("GET /metrics HTTP/1.0\r\n\r\nGET /x HTTP/1.0\r\n\r\n"),
            Some(Wanted::Page)
        );
        for unfinished in ["", "GET", "GET /metrics HTTP/1.0\r\n", "GET /metrics HTTP/1.0\r\n\r"] {
            assert_eq!(wanted_by(unfinished), None, "{unfinished:?}");
        }
    }

    /// Requests with bytes that are changed, lost, repeated and inserted: whatever they become, and in whatever parts they arrive, they are
    /// read without a panic, to one result, and only what is a request for the metrics gets them.
    #[test]
    fn damaged_requests_are_read_to_one_result_however_they_are_cut() {
        let seeds = [
            &b"GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\nAccept: text/plain;version=0.0.4\r\n\r\n"[..],
            b"HEAD http://a/metrics?x HTTP/1.0\n\n",
            b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\nHost: a\r\n\r\nabc",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as usize % below
        };
        let mut results = std::collections::BTreeMap::new();
        for _ in 0..20_000 {
            let mut bytes = seeds[random(seeds.len())].to_vec();
            for _ in 0..random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, b"\r\n :/?\0\xff"[random(8)]),
                    _ => {
                        let again = bytes[at..].to_vec();
                        bytes.extend(again);
                    }
                }
            }
            let (whole, _) = read(&bytes, bytes.len());
            let (cut, _) = read(&bytes, 1 + random(9));
            assert_eq!(whole, cut, "{:?}", bytes.escape_ascii().to_string());
            if whole == Some(Wanted::Page) {
                let text = String::from_utf8_lossy(&bytes);
                assert!(text.contains("GET ") && text.contains("/metrics"), "{text:?}");
            }
            *results.entry(format!("{whole:?}")).or_insert(0) += 1;
        }
        assert!(results.len() >= 6, "the changes reach all results: {results:?}");
    }
}
