//! The URIs of images: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]`, each part percent-encoded where it
//! contains a character that separates parts.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use ashlar_block::percent;
use thiserror::Error;

const SCHEME: &str = "rbd:";
/// The user without another one, as for Ceph's own programs.
const ADMIN: &str = "admin";
/// The configuration without another one, and the environment variable that names another, as for Ceph's own programs.
const CONFIGURATION: &str = "/etc/ceph/ceph.conf";
const CONFIGURATION_VARIABLE: &str = "CEPH_CONF";

/// A cluster, and the user that ashlar is there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The configuration file, which says where the cluster is; `None` for Ceph's default.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`
    pub user: String,
}

/// An image, or a snapshot of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uri {
    /// Where, and as whom.
    pub access: Access,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot; `None` for the image itself.
    pub snapshot: Option<String>,
}

/// The image that a URI names: the same for each user, and for each spelling of the URI.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity(PathBuf, [String; 3], Option<String>);

/// Why a text is not a URI of an image.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UriError {
    /// It begins otherwise.
    #[error("it does not begin with rbd:")]
    Scheme,
    /// No pool or no image, or too many parts.
    #[error("it is not of the form POOL/IMAGE or POOL/NAMESPACE/IMAGE")]
    Place,
    /// An empty snapshot.
    #[error("the name of the snapshot after the @ is missing")]
    Snapshot,
    /// An unknown parameter, or one without a value, or twice.
    #[error("unknown parameter `{0}`: use conf=FILE and id=USER, once each")]
    Parameter(String),
    /// A `%` without two hexadecimal digits, a zero byte, or no UTF-8.
    #[error("`{0}` is not percent-encoded UTF-8")]
    Encoding(String),
}

/// Whether a text is meant as the URI of an image, and not as a path.
pub fn is_uri(text: &str) -> bool {
    text.starts_with(SCHEME)
}

fn decoded(text: &str) -> Result<String, UriError> {
    // Ceph's functions end a string at a zero byte.
    let whole = percent::decode(text).filter(|text| !text.contains('\0'));
    whole.ok_or_else(|| UriError::Encoding(text.to_owned()))
}

impl Uri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`UriError`].
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let rest = text.strip_prefix(SCHEME).ok_or(UriError::Scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (place, snapshot) = match place.split_once('@') {
            Some((_, "")) => return Err(UriError::Snapshot),
            Some((place, snapshot)) => (place, Some(decoded(snapshot)?)),
            None => (place, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        if parts.contains(&"") {
            return Err(UriError::Place);
        }
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] => (pool, namespace, image),
            _ => return Err(UriError::Place),
        };
        let (mut conf, mut user) = (None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let unknown = || UriError::Parameter(parameter.to_owned());
            let (name, value) = parameter.split_once('=').ok_or_else(unknown)?;
            let place = match name {
                "conf" => &mut conf,
                "id" => &mut user,
                _ => return Err(unknown()),
            };
            let value = decoded(value)?;
            if value.is_empty() || place.replace(value).is_some() {
                return Err(unknown());
            }
        }
        Ok(Self {
            access: Access {
                conf: conf.map(PathBuf::from),
                user: user.unwrap_or_else(|| ADMIN.to_owned()),
            },
            pool: decoded(pool)?,
            namespace: decoded(namespace)?,
            image: decoded(image)?,
            snapshot,
        })
    }

    /// What it is of. Two identities are the same for one image, unless two configuration files are of one cluster.
    pub fn identity(&self) -> Identity {
        let conf = match (&self.access.conf, env::var_os(CONFIGURATION_VARIABLE)) {
            (Some(conf), _) => conf.clone(),
            (None, Some(conf)) => conf.into(),
            (None, None) => CONFIGURATION.into(),
        };
        let conf = conf.canonicalize().unwrap_or(conf);
        let names = [&self.pool, &self.namespace, &self.image].map(String::clone);
        Identity(conf, names, self.snapshot.clone())
    }

    /// A name for the disk: the image's, and the snapshot's.
    pub fn name(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.image),
            None => self.image.clone(),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conf = self.conf.as_deref().unwrap_or(Path::new("Ceph's default configuration"));
        write!(f, "client.{} by {}", self.user, conf.display())
    }
}

impl fmt::Display for Uri {
    /// As Ceph's programs write it: `POOL/NAMESPACE/IMAGE@SNAPSHOT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "/{}", self.namespace)?;
        }
        write!(f, "/{}", self.name())
    }
}
