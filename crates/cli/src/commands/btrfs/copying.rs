//! What `ashlar btrfs get` and `restore` print while files are copied out.

use std::cell::{Cell, RefCell};
use std::process::ExitCode;

use ashlar_commands::btrfs::block_signals;
use ashlar_commands::btrfs::restore::{
    Amount, RestoreCounts, RestoreEvent, RestoreObserver, RestoreOptions, RestoreProgress, restore,
};
use ashlar_daemon::error::{Error, FAILURE, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_files::{Name, size};
use ashlar_terminal::progress::{Moment, ProgressDisplay, clock};
use serde_json::json;

use super::volumes::FileSystemArgs;
use super::{SubvolumeArgs, with_files};
use crate::output;
use crate::progress::ProgressArgs;

/// What is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyOutput {
    /// How the progress and the result are shown, if they are.
    pub(super) progress: Option<ProgressArgs>,
    /// Print the names of copied files on standard output, behind this text.
    pub(super) names: Option<&'static str>,
    /// The option that sets owners.
    pub(super) owners: &'static str,
}

/// Opens the file system, and copies files out of its subvolume `top`.
///
/// # Errors
/// It cannot be opened, nothing could be copied, the target accepts no more data, or a signal ended it.
pub(super) fn run(
    chosen: &FileSystemArgs,
    top: SubvolumeArgs,
    options: &RestoreOptions,
    speech: CopyOutput,
) -> Result<ExitCode> {
    block_signals()?;
    let sandbox = Sandbox::of(&chosen.devices)
        .writing_to(&options.dest)
        .setting_owners(options.owners, options.xattrs);
    with_files(sandbox, chosen, top, async |files| {
        let printer = Printer {
            display: RefCell::new(speech.progress.map(ProgressArgs::patient_display)),
            paths: options.paths.iter().cloned().map(Name).collect(),
            dry_run: options.dry_run,
            names: speech.names,
            overwrite: Cell::new(Some(options.advice.overwrite)),
        };
        let counts = restore(files, options, &printer).await?;
        printer.end(&counts)?;
        if counts.special > 0 {
            let count = counts.special;
            output::note(&format!("left out: {count} device nodes, pipes and sockets\n"));
        }
        if counts.privileged > 0 {
            output::note(&format!(
                "left out: {} attributes of security.* and trusted.*, which {} sets\n",
                counts.privileged, speech.owners
            ));
        }
        Ok(if counts.failures > 0 { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
    })
}

struct Printer {
    display: RefCell<Option<ProgressDisplay>>,
    paths: Vec<Name>,
    dry_run: bool,
    names: Option<&'static str>,
    /// The option that replaces existing files, until it was named.
    overwrite: Cell<Option<&'static str>>,
}

impl Printer {
    /// Prints other output while a bar is shown.
    fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &*self.display.borrow() {
            Some(display) => display.beside(print),
            None => print(),
        }
    }

    fn line(&self, text: &str) -> Result<()> {
        self.beside(|| output::print(&format!("{text}\n")))
    }

    /// Reports the result.
    fn end(&self, counts: &RestoreCounts) -> Result<()> {
        let Some(display) = self.display.take() else { return Ok(()) };
        let RestoreCounts {
            files,
            directories,
            links,
            bytes,
            existing,
            special,
            privileged,
            failures,
        } = *counts;
        let would = if self.dry_run { "would be " } else { "" };
        let words = format!("{would}extracted: {counts}");
        let mut json = json!({
            "ended": true, "files": files,
            "directories": directories, "links": links, "bytes": bytes, "there": existing,
            "special": special, "privileged_attributes": privileged, "failures": failures,
        });
        name_paths(&mut json, &self.paths);
        if self.dry_run {
            json["dry_run"] = json!(true);
        }
        display.end(words, &json)
    }
}

impl RestoreObserver for Printer {
    fn event(&self, event: RestoreEvent<'_>) -> Result<()> {
        match event {
            RestoreEvent::File(dest) => match self.names {
                Some(text) => self.line(&format!("{text}{}", dest.display())),
                None => Ok(()),
            },
            RestoreEvent::KeptFile(dest) => {
                self.line(&format!("Skipping existing file {}", dest.display()))?;
                match self.overwrite.take() {
                    Some(option) => self.line(&format!("If you wish to overwrite use {option}")),
                    None => Ok(()),
                }
            }
            RestoreEvent::SkippedSnapshot(name) => self.line(&format!("Skipping snapshot {name}")),
        }
    }

    fn failure(&self, error: &Error) {
        self.beside(|| output::report(error));
    }

    fn progress(&self, progress: &RestoreProgress) -> Result<()> {
        match &mut *self.display.borrow_mut() {
            Some(display) => display.show(&moment(&self.paths, progress)),
            None => Ok(()),
        }
    }
}

/// Says in a line of JSON what is extracted.
fn name_paths(json: &mut serde_json::Value, paths: &[Name]) {
    match paths {
        [path] => json["path"] = json!(path.to_string()),
        paths => json["paths"] = paths.iter().map(Name::to_string).collect(),
    }
}

fn moment(paths: &[Name], progress: &RestoreProgress) -> Moment {
    let RestoreProgress { done: Amount { files, bytes }, total, rate } = *progress;
    let (speed, parts) = (size(rate), progress.parts());
    let mut json = json!({ "files": files, "bytes": bytes, "bytes_per_second": rate as u64 });
    name_paths(&mut json, paths);
    let words = match total {
        None => format!("{files} files, {}, {speed}/s", size(bytes as f64)),
        Some(total) => {
            let seconds_left = progress.seconds_left();
            json["total_files"] = json!(total.files);
            json["total_bytes"] = json!(total.bytes);
            json["seconds_left"] = json!(seconds_left);
            let left = seconds_left.map(|left| format!(", {} left", clock(left)));
            format!(
                "{}% ({files}/{} files, {}/{}), {speed}/s{}",
                parts / 10,
                total.files,
                size(bytes as f64),
                size(total.bytes as f64),
                left.unwrap_or_default(),
            )
        }
    };
    Moment { title: "get:".to_owned(), parts, words, json }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_as_a_sentence() {
        let done = Amount { files: 2, bytes: 4 << 20 };
        let progress = RestoreProgress { done, total: None, rate: 0.0 };
        let paths = [Name(b"/home".to_vec())];
        assert_eq!(moment(&paths, &progress).words, "2 files, 4.00MiB, 0.00B/s");
        let total = Some(Amount { files: 7, bytes: 16 << 20 });
        let moment = moment(&paths, &RestoreProgress { total, ..progress });
        assert_eq!(moment.words, "25% (2/7 files, 4.00MiB/16.00MiB), 0.00B/s");
        assert_eq!((moment.parts, &moment.json["total_files"]), (250, &json!(7)));
    }
}
