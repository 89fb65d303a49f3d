//! Who learns of an array's events: a program, a reader of mail, the system's log.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ashlar_block::text::one_line;
use ashlar_commands::md::hostname;
use ashlar_daemon::error::{Error, Result};
use ashlar_terminal::{Severity, SystemLog};
use ashlar_view::events::Event;
use clap::Args;

/// Directories of mail servers' `sendmail` that a user's PATH may lack.
const SENDMAIL: [&str; 2] = ["/usr/sbin", "/usr/lib"];

/// Who learns of events.
#[derive(Args, Debug)]
pub(super) struct AlertArgs {
    /// Run a program for each event, with the event, the array and the member or details, if there are any, as its arguments
    #[arg(short, long, visible_alias = "alert", value_name = "PROGRAM")]
    program: Option<PathBuf>,

    /// Send mail about failures
    ///
    /// About the events Fail, FailSpare, DegradedArray and TestMessage, by sendmail
    #[arg(short, long, value_name = "ADDRESS", value_parser = address)]
    mail: Option<String>,

    /// Send each event to the system's log
    #[arg(short = 'y', long)]
    syslog: bool,
}

fn address(text: &str) -> std::result::Result<String, &'static str> {
    // It becomes a line of the mail's head.
    let is_valid = !text.trim().is_empty() && !text.contains(char::is_control);
    if is_valid { Ok(text.to_owned()) } else { Err("it is not an address") }
}

/// The ways that were chosen, which exist.
pub(super) struct Alerts {
    program: Option<PathBuf>,
    mail: Option<Mail>,
    log: Option<SystemLog>,
}

struct Mail {
    sendmail: PathBuf,
    address: String,
}

impl AlertArgs {
    /// Checks that alerts can be sent.
    ///
    /// # Errors
    /// A program is missing, or the system's log is.
    pub(super) fn check(self) -> Result<Alerts> {
        let program = self.program.map(|name| {
            let missing = || Error::new("cannot run", name.display(), "there is no such program");
            find(&name, &[]).ok_or_else(missing)
        });
        let mail = self.mail.map(|address| {
            let missing = || {
                let why = "there is no sendmail in PATH, /usr/sbin and /usr/lib";
                let hint = "install a mail server or a program such as msmtp-mta, or use --program";
                Error::new("cannot send mail", &address, why).hint(hint)
            };
            let sendmail = find(Path::new("sendmail"), &SENDMAIL).ok_or_else(missing)?;
            Ok(Mail { sendmail, address })
        });
        Ok(Alerts {
            program: program.transpose()?,
            mail: mail.transpose()?,
            log: self.syslog.then(|| SystemLog::open("ashlar")).transpose()?,
        })
    }
}

/// The program of this name: a path, or one in PATH or `others`.
fn find(name: &Path, others: &[&str]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.parent().is_some_and(|parent| !parent.as_os_str().is_empty()) {
        return Some(name.to_owned()).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(others.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(is_program)
}

impl Alerts {
    /// Whether a program or mail tells of events, which are then not printed, as by mdadm.
    pub(super) fn is_told_elsewhere(&self) -> bool {
        self.program.is_some() || self.mail.is_some()
    }

    /// Tells of `event`. `mdstat` is asked for what a mail ends with. Returns the failures.
    pub(super) fn send(
        &self,
        event: &Event,
        mdstat: impl FnOnce() -> Option<String>,
    ) -> Vec<Error> {
        let Event { event: name, array, device, info } = event;
        let mut failures = Vec::new();
        if let Some(program) = &self.program {
            let mut command = Command::new(program);
            command.args([name, array]).args(device.as_ref().or(info.as_ref()));
            failures.extend(run(command, None).err());
        }
        if let Some(Mail { sendmail, address }) = self.mail.as_ref().filter(|_| event.is_mailed()) {
            let mut command = Command::new(sendmail);
            command.arg("-t");
            let mail = mail(event, address, mdstat().as_deref());
            failures.extend(run(command, Some(&mail)).err());
        }
        if let Some(log) = &self.log {
            let sent = log.send(severity(event), &one_line(&event.to_string()));
            failures.extend(
                sent.err().map(|why| Error::plain("cannot write to the system's log", why)),
            );
        }
        failures
    }
}

fn severity(event: &Event) -> Severity {
    match event.event.as_str() {
        _ if event.is_critical() => Severity::Critical,
        name if name.starts_with("Rebuild") => Severity::Warning,
        _ => Severity::Info,
    }
}

/// Runs a program to its end, with this text as its standard input.
fn run(mut command: Command, input: Option<&str>) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    let failed = |why: &dyn std::fmt::Display| Error::new("cannot tell", program.display(), why);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().map_err(|why| failed(&why))?;
    let written = match (child.stdin.take(), input) {
        (Some(mut stdin), Some(input)) => stdin.write_all(input.as_bytes()),
        (_, _) => Ok(()),
    };
    let status = child.wait().map_err(|why| failed(&why))?;
    if !status.success() {
        return Err(failed(&status));
    }
    written.map_err(|why| failed(&why))
}

/// The mail about an event.
fn mail(event: &Event, address: &str, mdstat: Option<&str>) -> String {
    let host = hostname().unwrap_or_else(|| "localhost".to_owned());
    let (name, array) = (&event.event, one_line(&event.array));
    let what = one_line(&event.to_string());
    let mut text = format!(
        "From: ashlar <root>\nTo: {address}\nSubject: {name} event on {array}:{host}\n\n\
         {what}.\n\nashlar md monitor on {host} sent this mail.\n"
    );
    if let Some(mdstat) = mdstat {
        text += &format!("\nproc/mdstat of the daemon:\n\n{mdstat}");
    }
    text
}
