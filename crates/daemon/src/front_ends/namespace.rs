//! The FUSE mount as a view of the attributes.

use std::sync::Arc;

use ashlar_block::{LocalFuture, rate_limited};
use ashlar_export::fuse::tree::{Access, Entry, Namespace};
use ashlar_view::attributes::{AttributeError, Attributes, NodeKind};
use rustix::io::Errno;

/// The namespace of the mount.
pub(crate) struct View {
    pub(crate) attributes: Arc<Attributes>,
}

fn errno(error: &AttributeError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

impl Namespace for View {
    fn lookup(&self, path: &str) -> Option<Entry> {
        Some(match self.attributes.lookup(path)? {
            NodeKind::Directory => Entry::Directory,
            NodeKind::Symlink(target) => Entry::Symlink(target),
            NodeKind::Attribute { readable, writable } => {
                Entry::Attribute(match (readable, writable) {
                    (true, true) => Access::ReadWrite,
                    (false, true) => Access::WriteOnly,
                    (_, false) => Access::ReadOnly,
                })
            }
            NodeKind::Volume(bytes) => Entry::Volume(bytes),
        })
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.attributes.list(path)
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        self.attributes.read(path).map_err(|error| errno(&error))
    }

    fn store(&self, path: &str, text: &str) -> LocalFuture<'static, Result<(), Errno>> {
        let path = path.to_owned();
        let written = self.attributes.write(&path, text);
        Box::pin(async move {
            written.await.map_err(|error| {
                // write(2) can only return an errno: log the reason.
                rate_limited!(info, path, %error, "not set");
                errno(&error)
            })
        })
    }
}
