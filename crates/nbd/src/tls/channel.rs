//! A stream that may be secured by TLS.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;

use ashlar_block::Segment;
use ashlar_block::sync::until;
use ashlar_engine::{ChunkList, Position};
use event_listener::Event;
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::ssl::{ErrorCode, Ssl, SslStream};
use openssl::x509::{X509NameRef, X509VerifyResult};
use rustix::net::Shutdown;
use thiserror::Error;

use super::credentials::user_of;
use super::records::{RECORD, Records};
use crate::stream::Stream;

thread_local! {
    /// The data of one record: the memory of segments is shared, and the library wants its own.
    static DATA: RefCell<Box<[u8; RECORD]>> = RefCell::new(Box::new([0; RECORD]));
}

/// Why a handshake failed.
#[derive(Debug, Error)]
pub enum SecureError {
    /// The connection failed, or ended.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The two sides did not agree, or one did not accept the other: what the library says.
    #[error("TLS handshake: {0}")]
    Handshake(String),
    /// No memory for the session.
    #[error("out of memory")]
    NoMemory,
}

/// See the module text.
pub struct Channel<S> {
    stream: S,
    tls: OnceCell<Box<Secured>>,
}

/// A session without its connection, which may go to another thread.
#[derive(Debug)]
pub struct TlsSession(SslStream<Records>);

/// A session on its connection.
struct Secured {
    session: RefCell<SslStream<Records>>,
    /// A task sends.
    is_sending: Cell<bool>,
    is_free: Event,
    /// A task has stopped in the middle of a record: no other may follow.
    is_cut: Cell<bool>,
    /// The list of what is sent, for reuse.
    list: Cell<Option<Box<ChunkList>>>,
}

impl<S> Channel<S> {
    /// A stream in plain text.
    pub fn plain(stream: S) -> Self {
        Self { stream, tls: OnceCell::new() }
    }

    /// The stream of a connection, with its session if it has one.
    pub fn resume(stream: S, session: Option<TlsSession>) -> Self {
        let this = Self::plain(stream);
        if let Some(TlsSession(session)) = session {
            let (Ok(()) | Err(_)) = this.tls.set(Secured::of(session));
        }
        this
    }

    /// The stream below, and the session. No operation may be in flight.
    pub fn into_parts(self) -> (S, Option<TlsSession>) {
        let session = self.tls.into_inner().map(|tls| TlsSession(tls.session.into_inner()));
        (self.stream, session)
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether a handshake has succeeded.
    pub fn is_secure(&self) -> bool {
        self.tls.get().is_some()
    }

    /// As [`Stream::recv`], of what has arrived already, with `more` to look for it in the stream below; `None` if nothing has.
    ///
    /// # Errors
    /// Those of `more`; a record is invalid.
    pub fn try_recv(
        &self,
        into: Segment,
        more: impl Fn(&S, Segment) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        let Some(tls) = self.tls.get() else { return more(&self.stream, into) };
        loop {
            if let Some(count) = tls.open(&into)? {
                return Ok(Some(count));
            }
            // An answer to a change of keys, which `recv` sends.
            if tls.has_output() {
                return Ok(None);
            }
            let Some(count) = more(&self.stream, tls.room())? else { return Ok(None) };
            tls.received(count);
        }
    }
}

impl<S: Stream> Channel<S> {
    /// Does the handshake of `ssl`, which knows its side, and secures the stream: all that follows is encrypted. Who the peer is, as a
    /// text, if it has proved that. To be called once, while nothing else uses the stream, and after all that came in plain text was looked at.
    ///
    /// # Errors
    /// [`SecureError`]. The stream must not be used after one.
    pub async fn secure(&self, ssl: Ssl) -> Result<Option<String>, SecureError> {
        let records = Records::new().ok_or(SecureError::NoMemory)?;
        let failed = |error: ErrorStack| SecureError::Handshake(error.to_string());
        let mut session = SslStream::new(ssl, records).map_err(failed)?;
        loop {
            let step = session.do_handshake();
            // Also an alert that says why there is no session.
            let sent = send_output(&self.stream, &mut session).await;
            let error = match step {
                Ok(()) => {
                    sent?;
                    break;
                }
                Err(error) => error,
            };
            match error.code() {
                ErrorCode::WANT_WRITE => sent?,
                ErrorCode::WANT_READ => {
                    sent?;
                    let room = session.get_ref().room();
                    let count = self.stream.recv(room).await?;
                    if count == 0 {
                        let why = "the peer ended the connection in the TLS handshake";
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into());
                    }
                    session.get_mut().received(count);
                }
                _ => return Err(SecureError::Handshake(reason(&error, &session))),
            }
        }
        let ssl = session.ssl();
        let cipher = ssl.current_cipher().map(|cipher| cipher.name());
        tracing::debug!(version = ssl.version_str(), cipher, "TLS");
        let peer = peer(&session);
        let (Ok(()) | Err(_)) = self.tls.set(Secured::of(session));
        Ok(peer)
    }
}

async fn send_output(stream: &impl Stream, session: &mut SslStream<Records>) -> io::Result<()> {
    while let Some(output) = session.get_mut().take_output() {
        let mut list = ChunkList::new();
        list.push_segment(output);
        stream.send(list).await.0?;
        session.get_mut().sent();
    }
    Ok(())
}

/// Why a handshake failed, in the words of the library.
fn reason(error: &openssl::ssl::Error, session: &SslStream<Records>) -> String {
    let verified = session.ssl().verify_result();
    if verified != X509VerifyResult::OK {
        return format!("the peer's certificate is refused: {}", verified.error_string());
    }
    texts(error)
}

/// The reasons in an error, without places in the library's source.
fn texts(error: &openssl::ssl::Error) -> String {
    let all = error.ssl_error().map(ErrorStack::errors).unwrap_or_default();
    let reasons: Vec<&str> = all.iter().filter_map(|error| error.reason()).collect();
    if reasons.is_empty() { error.to_string() } else { reasons.join(", ") }
}

/// Who the peer is: the name in its certificate, or the user of its key.
fn peer(session: &SslStream<Records>) -> Option<String> {
    let ssl = session.ssl();
    if let Some(certificate) = ssl.peer_certificate() {
        return Some(distinguished_name(certificate.subject_name()));
    }
    user_of(ssl).map(|user| user.escape_debug().to_string())
}

/// A name as in `CN=alice,O=example`, the most specific part first.
fn distinguished_name(name: &X509NameRef) -> String {
    let part = |entry: &openssl::x509::X509NameEntryRef| {
        let kind = entry.object().nid();
        let kind = if kind == Nid::UNDEF { "?" } else { kind.short_name().unwrap_or("?") };
        let value = entry.data().to_string().unwrap_or_default();
        format!("{kind}={}", value.escape_debug())
    };
    let mut parts: Vec<String> = name.entries().map(part).collect();
    parts.reverse();
    parts.join(",")
}

impl Secured {
    fn of(session: SslStream<Records>) -> Box<Self> {
        Box::new(Self {
            session: RefCell::new(session),
            is_sending: Cell::new(false),
            is_free: Event::new(),
            is_cut: Cell::new(false),
            list: Cell::new(None),
        })
    }

    /// Where the next receive goes.
    fn room(&self) -> Segment {
        self.session.borrow().get_ref().room()
    }

    fn received(&self, count: usize) {
        self.session.borrow_mut().get_mut().received(count);
    }

    fn has_output(&self) -> bool {
        self.session.borrow().get_ref().has_output()
    }

    /// Opens one record at most, of what has been received; `None` if more is needed, 0 at the end of the stream.
    fn open(&self, into: &Segment) -> io::Result<Option<usize>> {
        let mut session = self.session.borrow_mut();
        DATA.with_borrow_mut(|data| {
            let most = into.len().min(RECORD);
            let error = match session.ssl_read(&mut data[..most]) {
                Ok(count) => {
                    into.copy_from(&data[..count]);
                    return Ok(Some(count));
                }
                Err(error) => error,
            };
            match error.code() {
                // Without an end of the session, too: messages have lengths, so what is cut off is noticed.
                _ if session.get_ref().is_over() => Ok(Some(0)),
                ErrorCode::ZERO_RETURN => Ok(Some(0)),
                ErrorCode::WANT_READ | ErrorCode::WANT_WRITE => Ok(None),
                _ => Err(broken(&error)),
            }
        })
    }

    /// Seals the bytes of `from` behind `at`, as many as there is room for; whether these are all.
    fn seal(&self, from: &ChunkList, at: &mut Position) -> io::Result<bool> {
        let mut session = self.session.borrow_mut();
        DATA.with_borrow_mut(|data| {
            while session.get_ref().has_room() {
                let count = from.copy_part(at, &mut data[..]);
                if count == 0 {
                    return Ok(true);
                }
                let sealed = session.ssl_write(&data[..count]).map_err(|error| broken(&error))?;
                if sealed != count {
                    return Err(io::Error::other("TLS: a record was sealed in part"));
                }
            }
            Ok(false)
        })
    }

    /// Waits until no other task sends.
    async fn turn(&self) -> io::Result<Turn<'_>> {
        until(&self.is_free, || !self.is_sending.get()).await;
        if self.is_cut.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.is_sending.set(true);
        Ok(Turn { of: self, is_within: Cell::new(false) })
    }
}

fn broken(error: &openssl::ssl::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {}", texts(error)))
}

/// The right to send, until it is dropped.
struct Turn<'a> {
    of: &'a Secured,
    /// Something is being sent: if the task ends now, a record may be sent in part.
    is_within: Cell<bool>,
}

impl Turn<'_> {
    /// Sends all that is sealed.
    async fn send(&self, stream: &impl Stream) -> io::Result<()> {
        let Secured { session, list, .. } = self.of;
        loop {
            let Some(output) = session.borrow_mut().get_mut().take_output() else { return Ok(()) };
            let mut chunks = list.take().unwrap_or_else(ChunkList::new);
            chunks.push_segment(output);
            self.is_within.set(true);
            let (sent, mut chunks) = stream.send(chunks).await;
            // After an error, nothing may follow either.
            sent?;
            self.is_within.set(false);
            session.borrow_mut().get_mut().sent();
            chunks.clear();
            list.set(Some(chunks));
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_within.get() {
            self.of.is_cut.set(true);
        }
        self.of.is_sending.set(false);
        self.of.is_free.notify(1);
    }
}

impl<S: Stream> Stream for Channel<S> {
    async fn recv(&self, into: Segment) -> io::Result<usize> {
        let Some(tls) = self.tls.get() else { return self.stream.recv(into).await };
        loop {
            if let Some(count) = tls.open(&into)? {
                return Ok(count);
            }
            // An answer to a change of keys; without room for it, the library has not read all yet.
            if tls.has_output() {
                tls.turn().await?.send(&self.stream).await?;
                continue;
            }
            let count = self.stream.recv(tls.room()).await?;
            tls.received(count);
        }
    }

    async fn recv_exact(&self, mut into: Segment) -> io::Result<()> {
        if !self.is_secure() {
            return self.stream.recv_exact(into).await;
        }
        while !into.is_empty() {
            let count = self.recv(into.clone()).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into.split_to(count);
        }
        Ok(())
    }

    async fn send(&self, from: Box<ChunkList>) -> (io::Result<()>, Box<ChunkList>) {
        let Some(tls) = self.tls.get() else { return self.stream.send(from).await };
        let sent = async {
            let turn = tls.turn().await?;
            let mut at = Position::default();
            loop {
                let are_all = tls.seal(&from, &mut at)?;
                turn.send(&self.stream).await?;
                if are_all {
                    return Ok(());
                }
            }
        };
        (sent.await, from)
    }

    fn end(&self, how: Shutdown) {
        self.stream.end(how);
    }
}
