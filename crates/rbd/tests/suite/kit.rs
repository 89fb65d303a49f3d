//! Disks of images, and another client.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use ashlar_block::Gateway;
use ashlar_rbd::{OpenError, Uri};

use crate::cluster::Cluster;

/// Opens an image.
pub(crate) fn try_open(uri: &str, read_only: bool) -> Result<Gateway, OpenError> {
    let disk = ashlar_rbd::open(&Uri::parse(uri).unwrap(), read_only)?;
    Ok(Gateway::new(disk))
}

/// Opens an image for writing.
pub(crate) fn open(uri: &str) -> Gateway {
    try_open(uri, false).unwrap()
}

/// Why an image is not opened.
pub(crate) fn refused(uri: &str, read_only: bool) -> OpenError {
    match try_open(uri, read_only) {
        Ok(_) => panic!("{uri} can be opened"),
        Err(error) => error,
    }
}

/// Waits until `done`, on a thread without a reactor.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Another client, which executes Python code on the open image `image`.
pub(crate) struct OtherClient {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const PROGRAM: &str = "
import os, sys, rados, rbd
cluster = rados.Rados(conffile=os.environ['CEPH_CONF'])
cluster.connect()
image = rbd.Image(cluster.open_ioctx('rbd'), sys.argv[1])
print('open', flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except rbd.Error as error:
        print(type(error).__name__, flush=True)
image.close()
cluster.shutdown()
";

impl OtherClient {
    pub(crate) fn new(cluster: &Cluster, image: &str) -> Self {
        // Debian's own Python has the modules rados and rbd, which come with ceph-common.
        let mut command = cluster.client("/usr/bin/python3");
        command.args(["-c", PROGRAM, image]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self { child, input, output };
        assert_eq!(this.answer(), "open");
        this
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The value of an expression, or the name of the error.
    pub(crate) fn ask(&mut self, expression: &str) -> String {
        writeln!(self.input, "{expression}").unwrap();
        self.answer()
    }

    /// Kills it: nothing is closed.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has it close the image, and end.
    pub(crate) fn end(mut self) {
        drop(self.input);
        self.child.wait().unwrap();
    }
}

/// Whether no image of this process is open: another client can take the lock.
pub(crate) fn until_free(cluster: &Cluster, image: &str) {
    let mut other = OtherClient::new(cluster, image);
    let lock = "image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)";
    until("the image is free", || other.ask(lock) == "None");
    other.end();
}
