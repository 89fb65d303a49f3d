//! Shared by the tests of this module: a tree, messages, a runtime that needs no kernel.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ashlar_block::byte_volume::Holes;
use ashlar_block::{ByteVolume, LocalFuture};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::abi;
use super::session::Session;
use super::tree::{Access, Entry, Namespace, Owner};

mod emptied;
#[path = "../../../tests/suite/common/ram.rs"]
mod ram;
mod request;
mod server;
mod session;

/// A tree with the given volumes and some attributes.
struct Tree {
    entries: Mutex<BTreeMap<String, Entry>>,
    values: Mutex<BTreeMap<String, String>>,
}

impl Tree {
    fn new(volumes: &[(&str, Arc<ByteVolume>)]) -> Self {
        let mut entries = BTreeMap::new();
        for directory in ["dev", "sys", "sys/block", "sys/block/md0"] {
            entries.insert(directory.to_owned(), Entry::Directory);
        }
        let attributes = [
            ("size", Access::ReadOnly),
            ("nomerges", Access::ReadWrite),
            ("kick", Access::WriteOnly),
        ];
        for (name, access) in attributes {
            entries.insert(format!("sys/block/md0/{name}"), Entry::Attribute(access));
        }
        entries.insert("dev/link".into(), Entry::Symlink("md0".into()));
        for (path, volume) in volumes {
            entries.insert((*path).to_owned(), Entry::Volume(Arc::clone(volume)));
        }
        let values = BTreeMap::from([
            ("sys/block/md0/size".into(), "2048\n".into()),
            ("sys/block/md0/nomerges".into(), "0\n".into()),
        ]);
        Self { entries: Mutex::new(entries), values: Mutex::new(values) }
    }
}

impl Namespace for Arc<Tree> {
    fn lookup(&self, path: &str) -> Option<Entry> {
        self.entries.lock().unwrap().get(path).cloned()
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = self.entries.lock().unwrap();
        let here = |p: &String| {
            let (parent, name) = p.rsplit_once('/').unwrap_or(("", p));
            (parent == path).then(|| name.to_owned())
        };
        entries.keys().filter_map(here).collect()
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        self.values.lock().unwrap().get(path).cloned().ok_or(Errno::IO)
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Errno> {
        if !matches!(text, "0" | "1" | "2") {
            return Err(Errno::INVAL);
        }
        self.values.lock().unwrap().insert(path.to_owned(), format!("{text}\n"));
        Ok(())
    }

    /// A store to `kick` takes a while.
    fn store(&self, path: &str, text: &str) -> LocalFuture<'static, Result<(), Errno>> {
        let (tree, path, text) = (Self::clone(self), path.to_owned(), text.to_owned());
        Box::pin(async move {
            if path.ends_with("kick") {
                let mut waited = false;
                poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    if std::mem::replace(&mut waited, true) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            }
            tree.write(&path, &text)
        })
    }
}

fn session(volumes: &[(&str, Arc<ByteVolume>)]) -> (Arc<Tree>, Session<Arc<Tree>>) {
    session_with(volumes, Holes::Fast)
}

fn session_with(
    volumes: &[(&str, Arc<ByteVolume>)],
    holes: Holes,
) -> (Arc<Tree>, Session<Arc<Tree>>) {
    let tree = Arc::new(Tree::new(volumes));
    let owner = Owner { uid: 7, gid: 8, since: Duration::from_millis(1_500) };
    (Arc::clone(&tree), Session::new(tree, owner, holes))
}

/// A message in the kernel's format.
fn message<T: IntoBytes + Immutable + ?Sized>(
    opcode: u32,
    node: u64,
    args: &T,
    rest: &[u8],
) -> Vec<u8> {
    let args = args.as_bytes();
    let len = (size_of::<abi::InHeader>() + args.len() + rest.len()) as u32;
    let header = abi::InHeader { len, opcode, unique: UNIQUE, nodeid: node, ..Default::default() };
    [header.as_bytes(), args, rest].concat()
}

const UNIQUE: u64 = 0x1122_3344_5566_7788;

/// The errno of a reply (0: none) and the bytes after its header, which is checked.
fn reply_parts(reply: &[u8]) -> (i32, &[u8]) {
    let (header, rest) = abi::OutHeader::read_from_prefix(reply).expect("a reply has a header");
    assert_eq!(header.len as usize, reply.len());
    assert_eq!(header.unique, UNIQUE);
    assert!(header.error <= 0 && (header.error == 0 || rest.is_empty()));
    (-header.error, rest)
}

/// The structure at the start of a successful reply.
fn body<T: FromBytes + KnownLayout + Immutable>(reply: &[u8]) -> T {
    let (errno, rest) = reply_parts(reply);
    assert_eq!(errno, 0);
    T::read_from_prefix(rest).expect("the reply is long enough").0
}

fn errno(reply: &[u8]) -> Option<Errno> {
    match reply_parts(reply).0 {
        0 => None,
        errno => Some(Errno::from_raw_os_error(errno)),
    }
}

/// Runs a future that waits for nothing outside.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("a future waits forever");
}
