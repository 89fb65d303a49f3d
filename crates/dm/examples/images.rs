//! Mapped devices over image files, controlled by commands on standard input: our half of the interop tests.
//!
//! | command | what |
//! |---|---|
//! | `disk NAME FILE` | a file for use in tables |
//! | `device NAME START LEN TYPE ...` | a device with a table of one line |
//! | `reload NAME START LEN TYPE ...` | replaces its table |
//! | `copy NAME FILE SECTOR COUNT` | writes the file's contents at that sector |
//! | `copies NAME FILE SEED COUNT` | that many such writes at random sectors, four at a time |
//! | `flush NAME`, `suspend NAME` | |
//! | `dump NAME FILE` | reads the whole device into a file |
//! | `status NAME` | prints the same as `dmsetup status` |
//! | `half NAME` | waits until a merge is about half done |
//! | `merged NAME` | waits until a merge is done |
//! | `die`, `die MILLISECONDS` | exits, now or while other commands run, without cleanup |
//!
//! The first error exits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors};
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_engine::{EngineRuntime, OpenOptions, Reactor, ReactorConfig, open, sleep};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Sectors read or written at a time.
const PIECE: u64 = 2048;

#[derive(Default)]
struct Names(Mutex<BTreeMap<String, Gateway>>);

impl Devices for Names {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.lock().expect("one thread").get(name).cloned()
    }
}

#[derive(Default)]
struct Images {
    names: Arc<Names>,
    devices: BTreeMap<String, Arc<Device>>,
    origins: Arc<Origins>,
}

fn main() -> Outcome {
    let commands = std::io::read_to_string(std::io::stdin())?;
    let reactor = Reactor::new(ReactorConfig::default())?;
    reactor.block_on(async {
        let mut images = Images::default();
        for command in commands.lines() {
            images.run(command).await.map_err(|error| format!("{command}: {error}"))?;
        }
        Ok(())
    })
}

/// The sector and length of the next write of a series: xorshift.
fn next_place(state: &mut u64, size: u64) -> (u64, u64) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let at = *state % size;
    (at, (1 + (*state >> 40) % 48).min(size - at))
}

async fn copy(gateway: &Gateway, file: &File, at: u64, len: u64) -> Outcome {
    for at in
        (at..at + len).step_by(PIECE as usize).map(|start| start..(at + len).min(start + PIECE))
    {
        let mut bytes = vec![0; (at.end - at.start) as usize * 512];
        file.read_exact_at(&mut bytes, at.start * 512)?;
        gateway.write(Sector(at.start), &mut Buffer::from_slice(&bytes), Flags::empty()).await?;
    }
    Ok(())
}

impl Images {
    fn gateway(&self, name: &str) -> Outcome<Gateway> {
        self.names.find(name).ok_or_else(|| "there is no such device".into())
    }

    fn device(&self, name: &str) -> Outcome<&Device> {
        Ok(self.devices.get(name).ok_or("there is no such device")?)
    }

    async fn table(&self, words: &[&str]) -> Outcome<Table> {
        let lines = text::parse(&words.join(" "))?;
        let (runtime, origins) = (Arc::new(EngineRuntime), Arc::clone(&self.origins));
        Ok(Table::load(&lines, &Context { devices: &*self.names, runtime, origins }).await?)
    }

    /// Allocated and metadata sectors of a snapshot.
    fn usage(&self, name: &str) -> Outcome<(u64, u64)> {
        let status = self.device(name)?.status();
        let words: Vec<&str> = status.split_whitespace().collect();
        let usage = match words[..] {
            [_, _, _, used, metadata] => used.split_once('/').map(|(used, _)| (used, metadata)),
            _ => None,
        };
        let (used, metadata) = usage.ok_or_else(|| status.clone())?;
        Ok((used.parse()?, metadata.parse()?))
    }

    async fn until(&self, name: &str, done: impl Fn(u64, u64) -> bool) -> Outcome {
        while !self.usage(name).map(|(used, metadata)| done(used, metadata))? {
            sleep(Duration::from_micros(200)).await;
        }
        Ok(())
    }

    fn add(&self, name: &str, gateway: Gateway) {
        self.names.0.lock().expect("one thread").insert(name.to_owned(), gateway);
    }

    async fn run(&mut self, command: &str) -> Outcome {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["disk", name, file] => {
                let options = OpenOptions { direct: false, ..OpenOptions::default() };
                self.add(name, Gateway::new(Arc::new(open(Path::new(file), &options)?)));
            }
            ["device", name, ..] => {
                let table = self.table(&words[2..]).await?;
                let device = Device::start(name, table, Arc::new(EngineRuntime)).await?;
                self.add(name, Gateway::new(device.clone()));
                self.devices.insert(name.to_owned(), device);
            }
            ["reload", name, ..] => {
                let table = self.table(&words[2..]).await?;
                let device = self.device(name)?;
                device.load(table).await?;
                device.resume().await?;
            }
            ["copy", name, file, at, len] => {
                copy(&self.gateway(name)?, &File::open(file)?, at.parse()?, len.parse()?).await?;
            }
            ["copies", name, file, seed, count] => {
                let (gateway, file) = (self.gateway(name)?, File::open(file)?);
                let (mut state, size) = (seed.parse::<u64>()? | 1, gateway.capacity().0);
                let places = (0..count.parse::<u64>()?).map(|_| next_place(&mut state, size));
                let writes = places.map(|(at, len)| copy(&gateway, &file, at, len));
                stream::iter(writes).buffer_unordered(4).try_collect::<()>().await?;
            }
            ["flush", name] => self.gateway(name)?.flush().await?,
            ["suspend", name] => self.device(name)?.suspend(true).await?,
            ["dump", name, file] => {
                let (gateway, mut file) = (self.gateway(name)?, File::create(file)?);
                let size = gateway.capacity().0;
                for at in (0..size).step_by(PIECE as usize) {
                    let piece = gateway.read(Sector(at), Sectors(PIECE.min(size - at))).await?;
                    file.write_all(piece.as_slice())?;
                }
            }
            ["status", name] => print!("{}", self.device(name)?.status()),
            ["half", name] => {
                let (used, metadata) = self.usage(name)?;
                self.until(name, |now, _| now * 2 <= used + metadata).await?;
            }
            ["merged", name] => self.until(name, |used, metadata| used == metadata).await?,
            ["die"] => std::process::exit(9),
            ["die", after] => {
                let after = Duration::from_millis(after.parse()?);
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    std::process::exit(9);
                });
            }
            _ => return Err("not a command".into()),
        }
        Ok(())
    }
}
