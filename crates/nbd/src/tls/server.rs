//! The credentials of a server, which are read again once their files have changed: a certificate is replaced before it expires, and the
//! server does not end for that.
//!
//! [`ServerTls::renew`] compares the files with those that were read: which they are, and when they were changed. What cannot be used leaves
//! the former credentials in force, because files that belong together are replaced one after the other, and a server without credentials serves nobody.
//! Sessions keep the credentials with which they began. Whether a server has certificates or keys, and whether clients have to prove who they are,
//! never changes: a file that appears must not open the server to others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};

use ashlar_block::sync::lock;
use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslVerifyMode};
use openssl::stack::Stack;

use super::credentials::{
    CA, CIPHERS, Credentials, KEYS, REVOKED, TlsError, accept, accept_keys, context,
    show_certificate,
};

/// The credentials of a server, and the clients that it accepts.
#[derive(Clone)]
pub struct ServerTls(Arc<Inner>);

struct Inner {
    source: Source,
    /// What new sessions get.
    context: Mutex<SslContext>,
    /// Locked while the files are looked at, which may take long.
    seen: Mutex<Seen>,
}

/// Where credentials are.
enum Source {
    /// Certificates in a directory.
    Certificates { directory: PathBuf, verify_peer: bool },
    /// Keys in a file, which was named itself, or is in the directory `place`.
    Keys { file: PathBuf, place: PathBuf },
}

/// The states of the files of a source.
#[derive(PartialEq, Eq)]
struct Stamps(Vec<Option<Stamp>>);

/// Which file it is, and when it was changed.
#[derive(PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The files that were read.
struct Seen {
    used: Stamps,
    /// Those that could not be used: the log has that.
    refused: Option<Stamps>,
}

impl Source {
    fn of(credentials: &Credentials, verify_peer: bool) -> Result<Self, TlsError> {
        let keys = |file: PathBuf, place: &Path| match verify_peer {
            true => Err(TlsError::NothingToVerify),
            false => Ok(Self::Keys { file, place: place.to_owned() }),
        };
        match credentials {
            Credentials::Keys(file) => keys(file.clone(), file),
            Credentials::Directory(directory) if directory.join("server-cert.pem").exists() => {
                Ok(Self::Certificates { directory: directory.clone(), verify_peer })
            }
            Credentials::Directory(directory) => match directory.join(KEYS) {
                file if file.exists() => keys(file, directory),
                _ => Err(TlsError::Empty(directory.clone())),
            },
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Certificates { directory, verify_peer } => {
                let of_clients: &[&str] = if *verify_peer { &[CA, REVOKED] } else { &[] };
                let own = ["server-cert.pem", "server-key.pem"];
                own.iter().chain(of_clients).map(|name| directory.join(name)).collect()
            }
            Self::Keys { file, .. } => vec![file.clone()],
        }
    }

    fn place(&self) -> &Path {
        match self {
            Self::Certificates { directory, .. } => directory,
            Self::Keys { place, .. } => place,
        }
    }

    fn stamps(&self) -> Stamps {
        let stamp = |file: PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some(Stamp {
                file: (found.dev(), found.ino()),
                bytes: found.size(),
                modified: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
            })
        };
        Stamps(self.files().into_iter().map(stamp).collect())
    }

    /// Reads credentials in place of those that were `used`.
    fn reload(&self, used: &Stamps, found: &Stamps) -> Result<SslContext, TlsError> {
        let files = self.files().into_iter().zip(used.0.iter().zip(&found.0));
        let mut gone = files.filter(|(_, (before, now))| before.is_some() && now.is_none());
        // A list of revoked certificates may be missing, but not disappear: it could be between two versions.
        match gone.next() {
            Some((path, _)) => Err(TlsError::Gone(path)),
            None => self.load(),
        }
    }

    fn load(&self) -> Result<SslContext, TlsError> {
        let mut context = context(SslMethod::tls_server())?;
        // Tickets are for sessions that are resumed, and messages that arrive in between.
        context.set_num_tickets(0)?;
        let (directory, verify_peer) = match self {
            Self::Keys { file, .. } => {
                accept_keys(&mut context, file)?;
                return Ok(context.build());
            }
            Self::Certificates { directory, verify_peer } => (directory, *verify_peer),
        };
        context.set_cipher_list(CIPHERS)?;
        show_certificate(&mut context, directory, "server")?;
        if verify_peer {
            let accepted = accept(&mut context, directory)?;
            let mut names = Stack::new()?;
            for certificate in &accepted {
                names.push(certificate.subject_name().to_owned()?)?;
            }
            context.set_client_ca_list(names);
            context.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        }
        Ok(context.build())
    }
}

impl ServerTls {
    /// Reads a server's credentials. With `verify_peer`, clients need a certificate of the CA.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(credentials: &Credentials, verify_peer: bool) -> Result<Self, TlsError> {
        let source = Source::of(credentials, verify_peer)?;
        // Before they are read: what changes meanwhile is read once more.
        let used = source.stamps();
        let context = Mutex::new(source.load()?);
        let seen = Mutex::new(Seen { used, refused: None });
        Ok(Self(Arc::new(Inner { source, context, seen })))
    }

    /// Reads the credentials again if their files have changed since. If they cannot be used, the former ones stay in force; the log says so once
    /// for each state of the files. Waits for the file system: not for a reactor.
    pub fn renew(&self) {
        let Inner { source, context, seen } = &*self.0;
        let mut seen = match seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(seen)) => seen.into_inner(),
            // Another client's look must not keep this one waiting.
            Err(TryLockError::WouldBlock) => return,
        };
        let found = source.stamps();
        if found == seen.used {
            return;
        }
        match source.reload(&seen.used, &found) {
            Ok(new) => {
                *lock(context) = new;
                *seen = Seen { used: found, refused: None };
                let place = source.place().display();
                tracing::info!(%place, "the credentials for TLS have changed: new clients get the new ones");
            }
            Err(error) => {
                // Tried again for the next client, because a file may be unreadable for a moment.
                if seen.refused.as_ref() != Some(&found) {
                    tracing::warn!(%error, "cannot use the changed credentials for TLS: clients get the former ones");
                    seen.refused = Some(found);
                }
            }
        }
    }

    /// The file or the directory that [`Self::renew`] reads.
    pub fn place(&self) -> &Path {
        self.0.source.place()
    }

    /// The first of the files that is a link to another place. A process that may read [`Self::place`] alone cannot read it again.
    pub fn leads_away(&self) -> Option<PathBuf> {
        let place = self.place().canonicalize().ok()?;
        let is_elsewhere =
            |file: &PathBuf| file.canonicalize().is_ok_and(|at| !at.starts_with(&place));
        self.0.source.files().into_iter().find(is_elsewhere)
    }

    /// Whether each client has to prove who it is.
    pub fn proves_clients(&self) -> bool {
        match self.0.source {
            Source::Certificates { verify_peer, .. } => verify_peer,
            Source::Keys { .. } => true,
        }
    }

    /// A new session's server side.
    ///
    /// # Errors
    /// The library failed.
    pub fn session(&self) -> Result<Ssl, ErrorStack> {
        let mut ssl = Ssl::new(&lock(&self.0.context))?;
        ssl.set_accept_state();
        Ok(ssl)
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
