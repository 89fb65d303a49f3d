//! Maps a table over image files and copies the mapped device to a file, or a file to the device:
//! for the interoperation test, which does the same with the kernel.
//!
//! Usage: `mapped_image read|write TABLE FILE IMAGE...`, where TABLE names the images by path; or
//! `mapped_image log LOG`, which prints the entries of a log of writes.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors};
use ashlar_dm::target::log_writes::format::{MARK, records};
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_engine::{EngineRuntime, OpenOptions, Reactor, ReactorConfig, open};

struct Images(BTreeMap<String, Gateway>);

impl Devices for Images {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.get(name).cloned()
    }
}

const STEP: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["log", log] => print_log(&fs::read(log)?),
        ["read", table, file, images @ ..] => copy(table, file, images, false),
        ["write", table, file, images @ ..] => copy(table, file, images, true),
        _ => Err("usage: mapped_image read|write TABLE FILE IMAGE... | log LOG".into()),
    }
}

fn print_log(log: &[u8]) -> Result<(), Box<dyn Error>> {
    for record in records(log) {
        let record = record?;
        let (entry, mark) = (record.entry, record.entry.flags.get() & MARK != 0);
        let name = if mark { String::from_utf8_lossy(record.data) } else { "".into() };
        println!("{} {} {} {name}", entry.sector, entry.nr_sectors, entry.flags);
    }
    Ok(())
}

fn copy(table: &str, file: &str, images: &[&str], write: bool) -> Result<(), Box<dyn Error>> {
    let lines = text::parse(&fs::read_to_string(table)?)?;
    let reactor = Reactor::new(ReactorConfig::default())?;
    reactor.block_on(async {
        let mut named = BTreeMap::new();
        for image in images {
            let device = open(Path::new(image), &OpenOptions::default())?;
            named.insert((*image).to_owned(), Gateway::new(Arc::new(device)));
        }
        let images = Images(named);
        let runtime = Arc::new(EngineRuntime);
        let origins = Arc::default();
        let context = Context { devices: &images, runtime: runtime.clone(), origins };
        let table = Table::load(&lines, &context).await?;
        let device = Device::start("mapped", table, runtime).await?;
        let volume = Gateway::new(device.clone());
        let mut data = if write { fs::read(file)? } else { Vec::new() };
        let size = volume.capacity();
        if write && data.len() as u64 != size.bytes() {
            return Err(format!("{file} must have the size of the device, {size} sectors").into());
        }
        // Lengths that do not match chunks, so that bios cross pieces and chunks in every way.
        let mut at = 0;
        while at < size.0 {
            let len = STEP.min(size.0 - at);
            let (from, to) = ((at * 512) as usize, ((at + len) * 512) as usize);
            if write {
                let mut part = Buffer::from_slice(&data[from..to]);
                volume.write(Sector(at), &mut part, Flags::empty()).await?;
            } else {
                data.extend(volume.read(Sector(at), Sectors(len)).await?.as_slice());
            }
            at += len;
        }
        device.suspend(true).await?;
        if !write {
            fs::write(file, data)?;
        }
        print!("{}{}", device.table(), device.status());
        Ok(())
    })
}
