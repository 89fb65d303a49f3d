//! What a side proves itself with, and whom it accepts: certificates or keys, from files with the names that QEMU, nbdkit and libnbd use.
//!
//! | file in the directory | used by | contents |
//! |---|---|---|
//! | `ca-cert.pem` | both | certificates of the CAs that are accepted |
//! | `ca-crl.pem` | both, if there | certificates that the CAs have revoked |
//! | `server-cert.pem`, `server-key.pem` | server | its certificate, with those that lead to the CA, and its key |
//! | `client-cert.pem`, `client-key.pem` | client, if there | the same of the client |
//! | `keys.psk` | both, without certificates | lines of `USER:KEY` |
//!
//! Files are read when credentials are loaded, which blocks. A server looks at them again for each session: [`super::server`].

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslRef, SslSessionCacheMode,
    SslVerifyMode, SslVersion,
};
use openssl::x509::X509;
use openssl::x509::store::X509Lookup;
use openssl::x509::verify::{X509CheckFlags, X509VerifyFlags};
use thiserror::Error;

use super::keys::{self, Keys};
use crate::uri::TlsParameters;

/// The ciphers of TLS 1.2: authenticated, and with keys that are made for each connection. TLS 1.3 has no others. The shorter keys come
/// first: an attacker cannot try all keys of 128 bits either, and they take a quarter less of the processor.
pub(super) const CIPHERS: &str = "ECDHE+AES128+AESGCM:ECDHE+AESGCM:ECDHE+CHACHA20";
/// The ciphers of TLS 1.3.
const SUITES: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
/// The same with keys that both sides have.
const CIPHERS_OF_KEYS: &str = "ECDHE-PSK-CHACHA20-POLY1305";

pub(super) const CA: &str = "ca-cert.pem";
pub(super) const REVOKED: &str = "ca-crl.pem";
pub(super) const KEYS: &str = "keys.psk";

/// Why credentials cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file has other contents than it should.
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A directory has neither certificates nor keys.
    #[error("{0}: it has neither server-cert.pem nor keys.psk")]
    Empty(PathBuf),
    /// A file that was read before is not there any more.
    #[error("{0}: it is gone, or cannot be found; to serve without it, restart the server")]
    Gone(PathBuf),
    /// Keys prove who a client is already.
    #[error("clients have keys, which prove who they are: there is no certificate to verify")]
    NothingToVerify,
    /// The user is missing, or unknown.
    #[error("{path}: {why}")]
    User {
        /// The file of keys.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The library failed.
    #[error("TLS: {0}")]
    Library(#[from] ErrorStack),
}

/// Where a server's credentials are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Credentials {
    /// In a directory: certificates, or `keys.psk` if it has no server-cert.pem.
    Directory(PathBuf),
    /// In a file of keys.
    Keys(PathBuf),
}

/// The credentials of a client, and the server that it accepts.
pub struct ClientTls {
    context: SslContext,
    /// Whether the server has a certificate that is verified, and has the name.
    is_verified: bool,
    name: Option<String>,
}

impl ClientTls {
    /// Reads the credentials that a URI names, for a server of this host.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(parameters: &TlsParameters, host: Option<&str>) -> Result<Self, TlsError> {
        let mut context = context(SslMethod::tls_client())?;
        let name = parameters.hostname.as_deref().or(host).map(str::to_owned);
        if let Some(path) = &parameters.psk_file {
            show_key(&mut context, path, parameters.username.as_deref())?;
            // Without a certificate there is nothing to verify: who has no key cannot answer.
            context.set_verify(SslVerifyMode::NONE);
            return Ok(Self { context: context.build(), is_verified: false, name: None });
        }
        context.set_cipher_list(CIPHERS)?;
        match &parameters.certificates {
            Some(directory) => {
                accept(&mut context, directory)?;
                if directory.join("client-cert.pem").exists() {
                    show_certificate(&mut context, directory, "client")?;
                }
            }
            None => context.set_default_verify_paths()?,
        }
        let is_verified = parameters.verify_peer;
        let verify = if is_verified { SslVerifyMode::PEER } else { SslVerifyMode::NONE };
        context.set_verify(verify);
        Ok(Self { context: context.build(), is_verified, name })
    }

    /// A new session's client side.
    ///
    /// # Errors
    /// The library failed, or the server's name is not one.
    pub fn session(&self) -> Result<Ssl, ErrorStack> {
        let mut ssl = Ssl::new(&self.context)?;
        ssl.set_connect_state();
        let Some(name) = &self.name else { return Ok(ssl) };
        let address = name.parse::<IpAddr>();
        if address.is_err() && !name.contains('\0') {
            ssl.set_hostname(name)?;
        }
        if self.is_verified {
            let wanted = ssl.param_mut();
            wanted.set_hostflags(X509CheckFlags::NO_PARTIAL_WILDCARDS);
            match address {
                Ok(address) => wanted.set_ip(address)?,
                Err(_) => wanted.set_host(name)?,
            }
        }
        Ok(ssl)
    }
}

/// What all sessions have in common.
pub(super) fn context(method: SslMethod) -> Result<SslContextBuilder, TlsError> {
    let mut context = SslContext::builder(method)?;
    context.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    context.set_ciphersuites(SUITES)?;
    context.set_options(
        SslOptions::NO_TICKET
            | SslOptions::NO_RENEGOTIATION
            | SslOptions::NO_COMPRESSION
            | SslOptions::CIPHER_SERVER_PREFERENCE,
    );
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(context)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::File { path: path.to_owned(), source })
}

fn content(path: &Path, why: impl Into<String>) -> TlsError {
    TlsError::Content { path: path.to_owned(), why: why.into() }
}

fn certificates(path: &Path) -> Result<Vec<X509>, TlsError> {
    let found = X509::stack_from_pem(&read(path)?).unwrap_or_default();
    if found.is_empty() {
        return Err(content(path, "it has no certificate in PEM format"));
    }
    Ok(found)
}

/// Has this side show its certificate, with those that lead to the CA.
pub(super) fn show_certificate(
    context: &mut SslContextBuilder,
    directory: &Path,
    side: &str,
) -> Result<(), TlsError> {
    let path = directory.join(format!("{side}-cert.pem"));
    let mut chain = certificates(&path)?.into_iter();
    if let Some(own) = chain.next() {
        context.set_certificate(&own).map_err(|error| content(&path, error.to_string()))?;
    }
    for further in chain {
        context.add_extra_chain_cert(further)?;
    }
    let path = directory.join(format!("{side}-key.pem"));
    context.set_private_key(&*private_key(&path)?).map_err(|_| {
        content(&path, format!("it is not the key of the certificate in {side}-cert.pem"))
    })?;
    Ok(())
}

fn private_key(path: &Path) -> Result<PKey<Private>, TlsError> {
    // Nobody is there who could type a passphrase.
    let key = PKey::private_key_from_pem_callback(&read(path)?, |_| Ok(0));
    key.map_err(|_| content(path, "it has no private key in PEM format without a passphrase"))
}

/// Accepts peers with certificates of the CAs of a directory, and returns these.
pub(super) fn accept(
    context: &mut SslContextBuilder,
    directory: &Path,
) -> Result<Vec<X509>, TlsError> {
    let accepted = certificates(&directory.join(CA))?;
    let store = context.cert_store_mut();
    for certificate in &accepted {
        store.add_cert(certificate.clone())?;
    }
    let revoked = directory.join(REVOKED);
    if revoked.exists() {
        let failed = |_| content(&revoked, "it has no list of revoked certificates in PEM format");
        store
            .add_lookup(X509Lookup::file())?
            .load_crl_file(&revoked, openssl::ssl::SslFiletype::PEM)
            .map_err(failed)?;
        store.set_flags(X509VerifyFlags::CRL_CHECK)?;
    }
    Ok(accepted)
}

fn read_keys(path: &Path) -> Result<Keys, TlsError> {
    let text = String::from_utf8(read(path)?).map_err(|_| content(path, "it is not UTF-8"))?;
    keys::parse(&text).map_err(|why| content(path, why))
}

/// Where a session has the user whose key was asked for: with TLS 1.3 the library does not say.
static USER: LazyLock<Option<Index<Ssl, String>>> = LazyLock::new(|| Ssl::new_ex_index().ok());

/// The user of the key that the peer has proved to have, in a server's session with keys.
pub(super) fn user_of(session: &SslRef) -> Option<&str> {
    session.ex_data((*USER)?).map(String::as_str)
}

/// Has a server accept clients with a key of this file.
pub(super) fn accept_keys(context: &mut SslContextBuilder, path: &Path) -> Result<(), TlsError> {
    let keys = read_keys(path)?;
    context.set_cipher_list(CIPHERS_OF_KEYS)?;
    context.set_psk_server_callback(move |session, user, room| {
        let user = user.and_then(|user| std::str::from_utf8(user).ok()).unwrap_or_default();
        let key = keys.get(user).and_then(|key| Some((key, room.get_mut(..key.len())?)));
        let Some((key, room)) = key else {
            tracing::debug!(user = %user.escape_debug(), "an NBD client without a key");
            return Ok(0);
        };
        room.copy_from_slice(key);
        if let Some(index) = *USER {
            session.set_ex_data(index, user.to_owned());
        }
        Ok(key.len())
    });
    Ok(())
}

/// Has a client show that it has the key of a user; without a name, of the only user in the file.
fn show_key(
    context: &mut SslContextBuilder,
    path: &Path,
    user: Option<&str>,
) -> Result<(), TlsError> {
    let keys = read_keys(path)?;
    let wrong = |why: String| TlsError::User { path: path.to_owned(), why };
    let (user, key) = match (user, keys.len()) {
        (Some(user), _) => {
            let missing = || wrong(format!("it has no key of the user `{}`", user.escape_debug()));
            keys.get_key_value(user).ok_or_else(missing)?
        }
        (None, 1) => keys.first_key_value().ok_or_else(|| wrong(String::new()))?,
        (None, _) => {
            return Err(wrong("it has several users: name one, nbds://USER@HOST".to_owned()));
        }
    };
    let (user, key) = (user.clone().into_bytes(), key.clone());
    context.set_cipher_list(CIPHERS_OF_KEYS)?;
    context.set_psk_client_callback(move |_, _, user_room, key_room| {
        let rooms = (user_room.get_mut(..=user.len()), key_room.get_mut(..key.len()));
        let (Some(user_room), Some(key_room)) = rooms else { return Ok(0) };
        user_room[..user.len()].copy_from_slice(&user);
        user_room[user.len()] = 0;
        key_room.copy_from_slice(&key);
        Ok(key.len())
    });
    Ok(())
}
