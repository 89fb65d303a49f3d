//! blktrace's files: for each device and thread `BASE.blktrace.THREAD`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use ashlar_block::disk::DeviceNumber;
use ashlar_plot::trace::binary::{Item, Items, PlacedItem};

use crate::error::{Error, Result};

/// The most threads in a trace.
const MAX_THREADS: u32 = 4096;

/// The path of a file.
fn path(base: &Path, thread: u32) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".blktrace.{thread}"));
    name.into()
}

/// The files of a trace that is being written.
pub struct TraceFiles {
    /// The base path of each device.
    bases: BTreeMap<u32, PathBuf>,
    open: BTreeMap<(u32, u32), BufWriter<File>>,
    threads: u32,
}

impl TraceFiles {
    /// Creates files: `base.blktrace.0` for one device, `base.DEVICE.blktrace.0` for each of several.
    ///
    /// # Errors
    /// One of them exists, or cannot be written.
    pub fn create(base: &Path, devices: &[(DeviceNumber, String)]) -> Result<Self> {
        let base = |name: &str| {
            let mut base = base.as_os_str().to_owned();
            if devices.len() > 1 {
                // As blktrace does.
                base.push(format!(".{}", name.replace('/', "_")));
            }
            PathBuf::from(base)
        };
        let bases = devices.iter().map(|(number, name)| (number.raw(), base(name))).collect();
        let mut files = Self { bases, open: BTreeMap::new(), threads: 0 };
        files.add_threads(1)?;
        Ok(files)
    }

    /// Creates files up to this number of threads: blkparse reads them up to the first that is missing.
    fn add_threads(&mut self, count: u32) -> Result<()> {
        for thread in self.threads..count {
            for (device, base) in &self.bases {
                let path = path(base, thread);
                let file = File::create_new(&path).map_err(|error| failed(&path, &error))?;
                self.open.insert((*device, thread), BufWriter::new(file));
            }
        }
        self.threads = self.threads.max(count);
        Ok(())
    }

    /// Writes an item to its file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&mut self, placed: &PlacedItem) -> Result<()> {
        if placed.thread >= MAX_THREADS {
            return Err(Error::plain("no trace", format_args!("thread {}", placed.thread)));
        }
        self.add_threads(placed.thread.saturating_add(1))?;
        let device = placed.device.raw();
        let Some(file) = self.open.get_mut(&(device, placed.thread)) else { return Ok(()) };
        let written = file.write_all(&placed.bytes);
        written.map_err(|error| self.failed(device, placed.thread, &error))
    }

    /// Flushes the items written.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        let mut results = self.open.iter_mut().map(|(of, file)| (*of, file.flush()));
        match results.find_map(|(of, result)| Some((of, result.err()?))) {
            None => Ok(()),
            Some(((device, thread), error)) => Err(self.failed(device, thread, &error)),
        }
    }

    fn failed(&self, device: u32, thread: u32, error: &io::Error) -> Error {
        let path = self.bases.get(&device).map(|base| path(base, thread)).unwrap_or_default();
        failed(&path, error)
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let failed = Error::new("cannot write the trace", path.display(), error);
    if error.kind() == io::ErrorKind::AlreadyExists {
        failed.hint("remove it, or give another --output")
    } else {
        failed
    }
}

/// A file being read.
type TraceItems = Peekable<Box<dyn Iterator<Item = Result<PlacedItem>>>>;

/// Opens the files of a trace.
fn open(base: &Path) -> Result<Vec<TraceItems>> {
    let mut files: Vec<TraceItems> = Vec::new();
    for thread in 0.. {
        let path = path(base, thread);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if thread > 0 && error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(Error::new("cannot read the trace", path.display(), error)),
        };
        let bad = move |error| Error::new("cannot read the trace", path.display(), error);
        // After an error the rest cannot be parsed.
        let mut is_bad = false;
        let items = Items::new(BufReader::new(file)).map(move |item| item.map_err(&bad));
        let items = items.take_while(move |item| !std::mem::replace(&mut is_bad, item.is_err()));
        files.push((Box::new(items) as Box<dyn Iterator<Item = _>>).peekable());
    }
    Ok(files)
}

/// The files of a trace: of one device `base.blktrace.0` and so on, of several those of `base.DEVICE`, in
/// the order of their names.
fn bases(base: &Path) -> Vec<(String, PathBuf)> {
    let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if path(base, 0).exists() {
        return vec![(name, base.to_owned())];
    }
    let dir = base.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| {
        let file = entry.ok()?.file_name().into_string().ok()?;
        let device = file.strip_prefix(&format!("{name}."))?.strip_suffix(".blktrace.0")?;
        Some((device.to_owned(), base.with_file_name(format!("{name}.{device}"))))
    });
    let mut all: Vec<_> = found.collect();
    all.sort();
    if all.is_empty() {
        // What opens it says what is missing.
        all.push((name, base.to_owned()));
    }
    all
}

/// The devices of a trace: a single one is named after the files, several are those of the names
/// `base.DEVICE`.
///
/// # Errors
/// It cannot be read.
pub fn recorded_devices(base: &Path) -> Result<Vec<(DeviceNumber, String)>> {
    let mut all = Vec::new();
    for (name, base) in bases(base) {
        let first = open(&base)?.into_iter().flatten().next().transpose()?;
        all.extend(first.map(|placed| (placed.device, name)));
    }
    Ok(all)
}

/// The items of a trace, merged by time; names come before the events that use them.
///
/// # Errors
/// It cannot be read.
pub fn recorded_items(base: &Path) -> Result<impl Iterator<Item = Result<Item>>> {
    let mut files = Vec::new();
    for (_, base) in bases(base) {
        files.extend(open(&base)?);
    }
    Ok(std::iter::from_fn(move || {
        let heads = files.iter_mut().filter_map(|file| {
            let time_ns = match file.peek()? {
                Ok(PlacedItem { item: Item::Event(record), .. }) => record.time_ns,
                Ok(PlacedItem {
                    item: Item::Name(_) | Item::Start { .. } | Item::Other, ..
                })
                | Err(_) => 0,
            };
            Some((time_ns, file))
        });
        let (_, oldest) = heads.min_by_key(|(time_ns, _)| *time_ns)?;
        Some(oldest.next()?.map(|placed| placed.item))
    }))
}
