//! `--mounted` and `--nbd`: real clients of a daemon that serves the volume. dd on a loop device on the mount, as the pull
//! request has it on a zvol; fio's client of NBD.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ashlar_commands::error::{Error, Result};
use ashlar_engine::now_ns;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;
use serde_json::Value;

use super::cpu::CpuTime;
use super::load::Way;
use super::table::size;
use crate::loops::{LoopDevice, drop_caches};
use crate::program::{ashlar, run, run_ashlar};

/// The pool and its volume.
const POOL: &str = "ashlar-bench";
const VOLUME: &str = "ashlar-bench/v";
/// How long the daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How clients reach the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Front {
    Mounted,
    Nbd,
}

/// The work of a client.
#[derive(Clone, Copy)]
enum Load {
    /// `dd bs=1M` on the loop device, or on the mounted file.
    Dd { is_direct: bool, loop_nomerges: u8 },
    /// fio, with so many requests at a time for each stream.
    Fio { kib: u64, depth: u32 },
}

/// The first is what the pull request measures: a page cache whose bios of a page reach the zvol's own queue. A loop device with its
/// own queue merges them before.
const ON_LOOP: [(&str, Load); 3] = [
    ("dd, page cache, a bio for each page", Load::Dd { is_direct: false, loop_nomerges: 2 }),
    ("dd, page cache, merged by the loop device", Load::Dd { is_direct: false, loop_nomerges: 0 }),
    ("dd, O_DIRECT", Load::Dd { is_direct: true, loop_nomerges: 0 }),
];
const ON_FILE: [(&str, Load); 1] =
    [("dd, the mounted file", Load::Dd { is_direct: true, loop_nomerges: 0 })];
const OVER_NBD: [(&str, Load); 3] = [
    ("fio, 4 KiB, 32 at a time", Load::Fio { kib: 4, depth: 32 }),
    ("fio, 64 KiB, 32 at a time", Load::Fio { kib: 64, depth: 32 }),
    ("fio, 1 MiB, 4 at a time", Load::Fio { kib: 1024, depth: 4 }),
];

/// The settings of the measurements.
pub(super) struct Clients {
    pub(super) front: Front,
    /// The disks of the pool; in pairs of a mirror, if `is_mirrored`.
    pub(super) disks: Vec<PathBuf>,
    pub(super) is_mirrored: bool,
    pub(super) size_bytes: u64,
    pub(super) streams: u64,
    pub(super) rounds: usize,
}

/// A client with the queue off or on. Processor times are of the clients, and of the daemon with the pool's process; the kernel's own
/// threads (loop device, writeback) are in neither.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClientRow {
    client: &'static str,
    way: &'static str,
    queue: bool,
    megabytes_per_second: f64,
    seconds: f64,
    client_system_seconds: f64,
    client_user_seconds: f64,
    daemon_system_seconds: f64,
    daemon_user_seconds: f64,
    /// Requests of the volume's driver, and bios that were merged into them.
    requests: u64,
    merged: u64,
}

/// A volume's figures.
#[derive(Serialize)]
pub(super) struct ClientFigures {
    volblocksize_bytes: u64,
    rows: Vec<ClientRow>,
}

impl Clients {
    /// Makes the pool, and measures a volume with blocks of each size. `say` gets what is to be printed; the daemon has its
    /// sockets and its mount in `dir`.
    ///
    /// # Errors
    /// A program is missing or fails; with [`Front::Mounted`], the user is not root.
    pub(super) fn run(
        &self,
        dir: &Path,
        blocks: &[u64],
        say: impl Fn(&str) -> Result<()>,
    ) -> Result<Vec<ClientFigures>> {
        let disks: Vec<&str> = self.disks.iter().filter_map(|disk| disk.to_str()).collect();
        if disks.len() < self.disks.len() {
            return Err(Error::usage("the paths of disks must be UTF-8"));
        }
        let mut create = vec!["zpool", "create", POOL];
        for pair in disks.chunks(if self.is_mirrored { 2 } else { 1 }) {
            create.extend(self.is_mirrored.then_some("mirror"));
            create.extend(pair);
        }
        run_ashlar(&create, dir)?;
        let joined = disks.join(",");
        let on_disks = ["--devices", joined.as_str()];
        let mut all = Vec::new();
        for block_bytes in blocks {
            let (bytes, block) = (self.size_bytes.to_string(), block_bytes.to_string());
            let create = ["zvol", "create", "-s", "-V", &bytes, "-b", &block];
            // A flush would measure the disks: the times end when all is acknowledged.
            let properties = ["-o", "compression=off", "-o", "sync=disabled", VOLUME];
            run_ashlar(&[&create[..], &properties, &on_disks].concat(), dir)?;
            let served = Served::start(dir, &disks, self.front)?;
            let rows = self.volume(&served);
            let ended = served.end();
            let figures = ClientFigures { volblocksize_bytes: *block_bytes, rows: rows? };
            ended?;
            say(&figures.text())?;
            all.push(figures);
            run_ashlar(&[&["zvol", "destroy", VOLUME][..], &on_disks].concat(), dir)?;
        }
        Ok(all)
    }

    fn volume(&self, served: &Served) -> Result<Vec<ClientRow>> {
        let clients = served.clients();
        // The measured writes are overwrites.
        if let Some((name, load)) = clients.last() {
            self.once(served, name, (*load, Way::Write, false))?;
        }
        let mut rows = Vec::new();
        for way in Way::ALL {
            let mut samples = vec![Vec::new(); 2 * clients.len()];
            for round in 0..self.rounds {
                for (at, (name, load)) in clients.iter().enumerate() {
                    let first = !round.is_multiple_of(2);
                    for queue in [first, !first] {
                        let row = self.once(served, name, (*load, way, queue))?;
                        samples[2 * at + usize::from(queue)].push(row);
                    }
                }
            }
            rows.extend(samples.into_iter().filter_map(|mut samples| {
                samples.sort_by(|one: &ClientRow, two| one.seconds.total_cmp(&two.seconds));
                let middle = samples.len() / 2;
                samples.into_iter().nth(middle)
            }));
        }
        Ok(rows)
    }

    fn once(
        &self,
        served: &Served,
        client: &'static str,
        (load, way, queue): (Load, Way, bool),
    ) -> Result<ClientRow> {
        served.set("zvol/use_blk_mq", if queue { "1" } else { "0" })?;
        served.settle()?;
        let (before, cpu) = (served.counts(way)?, served.cpu_time()?);
        let (seconds, of_clients) = match load {
            Load::Dd { is_direct, loop_nomerges } => {
                served.set_loop_nomerges(loop_nomerges)?;
                if way == Way::Read {
                    drop_caches()?;
                }
                self.dd(served, way, is_direct)?
            }
            Load::Fio { kib, depth } => self.fio(served, way, (kib, depth))?,
        };
        let (after, of_daemon) = (served.counts(way)?, served.cpu_time()? - cpu);
        Ok(ClientRow {
            client,
            way: way.name(),
            queue,
            megabytes_per_second: self.measured_bytes() as f64 / 1e6 / seconds,
            seconds,
            client_system_seconds: of_clients.system,
            client_user_seconds: of_clients.user,
            daemon_system_seconds: of_daemon.system,
            daemon_user_seconds: of_daemon.user,
            requests: after[0].saturating_sub(before[0]),
            merged: after[1].saturating_sub(before[1]),
        })
    }

    /// What each stream reads or writes, MiB.
    fn part_mib(&self) -> u64 {
        (self.size_bytes >> 20) / self.streams
    }

    fn measured_bytes(&self) -> u64 {
        (self.part_mib() * self.streams) << 20
    }

    /// The seconds until the last dd has ended, and the processor time of all.
    fn dd(&self, served: &Served, way: Way, is_direct: bool) -> Result<(f64, CpuTime)> {
        let part = self.part_mib();
        let volume = served.target.display();
        let direct = match way {
            Way::Write => "oflag=direct",
            Way::Read => "iflag=direct",
        };
        let begun_ns = now_ns();
        let mut all = Vec::new();
        for at in 0..self.streams {
            let at = at * part;
            let place = match way {
                Way::Write => {
                    ["if=/dev/zero".to_owned(), format!("of={volume}"), format!("seek={at}")]
                }
                Way::Read => {
                    [format!("if={volume}"), "of=/dev/null".to_owned(), format!("skip={at}")]
                }
            };
            let mut command = Command::new("dd");
            command.args(place).args(["bs=1M", &format!("count={part}"), "status=none"]);
            command.args((way == Way::Write).then_some("conv=notrunc,fdatasync"));
            command.args(is_direct.then_some(direct));
            let child = command.spawn();
            all.push(child.map_err(|error| Error::new("cannot run", "dd", error))?);
        }
        let mut cpu = CpuTime::default();
        let mut have_ended = Ok(());
        for child in &all {
            // Until it is waited for, /proc has its processor time.
            let pid = Pid::from_child(child);
            let ended = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            ended.map_err(|errno| Error::new("cannot wait for", "dd", errno))?;
        }
        let seconds = (now_ns() - begun_ns) as f64 / 1e9;
        for mut child in all {
            cpu = cpu + CpuTime::of(child.id())?;
            if !child.wait().is_ok_and(|status| status.success()) {
                have_ended = Err(Error::new("failed", "dd", served.target.display()));
            }
        }
        have_ended.map(|()| (seconds, cpu))
    }

    /// The seconds that fio measures, and its processor time.
    fn fio(&self, served: &Served, way: Way, (kib, depth): (u64, u32)) -> Result<(f64, CpuTime)> {
        let socket = served.dir.join("nbd");
        let part = format!("{}M", self.part_mib());
        let args = [
            "--name=zvol".to_owned(),
            "--ioengine=nbd".to_owned(),
            format!("--uri=nbd+unix:///zvol/{VOLUME}?socket={}", socket.display()),
            format!("--rw={}", way.name()),
            format!("--bs={kib}k"),
            format!("--iodepth={depth}"),
            format!("--numjobs={}", self.streams),
            format!("--size={part}"),
            format!("--offset_increment={part}"),
            "--thread".to_owned(),
            "--output-format=json".to_owned(),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let text = run("fio", &args)?;
        let bad = || Error::new("not understood", "fio", "its output");
        // Warnings may stand before it.
        let report = text.find('{').and_then(|at| serde_json::from_str::<Value>(&text[at..]).ok());
        let report = report.ok_or_else(bad)?;
        let (mut longest, mut cpu) = (0.0_f64, CpuTime::default());
        for job in report["jobs"].as_array().ok_or_else(bad)? {
            let number = |value: &Value| value.as_f64().ok_or_else(bad);
            let seconds = number(&job[way.name()]["runtime"])? / 1e3;
            let share = |value: &Value| number(value).map(|percent| seconds * percent / 100.0);
            longest = longest.max(seconds);
            let (system, user) = (share(&job["sys_cpu"])?, share(&job["usr_cpu"])?);
            cpu = cpu + CpuTime { system, user };
        }
        // It counts milliseconds.
        Ok((longest.max(0.001), cpu))
    }
}

impl ClientFigures {
    fn text(&self) -> String {
        let mut text = String::new();
        for way in Way::ALL {
            text += &format!(
                "\nvolblocksize {}, {}\n  {:<46} {:>6} {:>8} {:>15} {:>15} {:>9} {:>8}\n",
                size(self.volblocksize_bytes),
                way.name(),
                "",
                "MB/s",
                "elapsed",
                "client sys user",
                "daemon sys user",
                "requests",
                "merged",
            );
            let rows: Vec<_> = self.rows.iter().filter(|row| row.way == way.name()).collect();
            for row in &rows {
                text += &row.text();
            }
            for [off, on] in rows.as_chunks::<2>().0 {
                let gain = on.megabytes_per_second / off.megabytes_per_second;
                text += &format!("  with the queue on, {}: {gain:.2} times the rate\n", on.client);
            }
        }
        text
    }
}

impl ClientRow {
    fn text(&self) -> String {
        format!(
            "  queue {:<3} {:<42} {:>4.0} {:>8.2} {:>9.2} {:>5.2} {:>9.2} {:>5.2} {:>9} {:>8}\n",
            if self.queue { "on," } else { "off," },
            self.client,
            self.megabytes_per_second,
            self.seconds,
            self.client_system_seconds,
            self.client_user_seconds,
            self.daemon_system_seconds,
            self.daemon_user_seconds,
            self.requests,
            self.merged,
        )
    }
}

/// A daemon with the volume, and what its clients use.
struct Served {
    dir: PathBuf,
    /// A loop device, or the file in the mount. Detached before the daemon ends.
    device: Option<LoopDevice>,
    front: Front,
    target: PathBuf,
    daemon: Child,
    /// Kept open: the daemon may write more.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Served {
    fn start(dir: &Path, disks: &[&str], front: Front) -> Result<Self> {
        let log = dir.join("log");
        let failed =
            |error: &dyn std::fmt::Display| Error::new("cannot run", "ashlar serve", error);
        let file = fs::File::create(&log).map_err(|error| failed(&error))?;
        let mut command = Command::new(ashlar());
        command.arg("serve").args(disks).args(["--no-sandbox", "--control", "control"]);
        match front {
            Front::Mounted => command.args(["--mount", "mnt"]),
            Front::Nbd => command.args(["--nbd", "unix:nbd"]),
        };
        let command = command.current_dir(dir).stdin(Stdio::null());
        let mut daemon =
            command.stdout(Stdio::piped()).stderr(file).spawn().map_err(|error| failed(&error))?;
        let Some(stdout) = daemon.stdout.take() else { return Err(failed(&"it has no output")) };
        let mut lines = BufReader::new(stdout).lines();
        let is_ready =
            lines.by_ref().map_while(std::result::Result::ok).any(|line| line == "ready");
        let target = dir.join("mnt/dev/zvol").join(VOLUME);
        let mut this =
            Self { dir: dir.to_owned(), device: None, front, target, daemon, _lines: lines };
        if !is_ready {
            let log = fs::read_to_string(&log).unwrap_or_default();
            return Err(failed(&log.trim()));
        }
        if front == Front::Mounted {
            match LoopDevice::attach(&this.target, false) {
                Ok(device) => {
                    this.target = device.name().into();
                    this.device = Some(device);
                }
                Err(error) => {
                    tracing::warn!(%error, "no loop device: dd uses the mounted file, without a page cache");
                }
            }
        }
        Ok(this)
    }

    /// The clients that are possible.
    fn clients(&self) -> &'static [(&'static str, Load)] {
        match (self.front, &self.device) {
            (Front::Nbd, _) => &OVER_NBD,
            (Front::Mounted, Some(_)) => &ON_LOOP,
            (Front::Mounted, None) => &ON_FILE,
        }
    }

    fn control(&self, args: &[&str]) -> Result<String> {
        run_ashlar(&[args, &["--control", "control"]].concat(), &self.dir)
    }

    /// Sets an attribute of the volume's device.
    fn set(&self, name: &str, value: &str) -> Result<()> {
        self.control(&["set", &format!("sys/block/zd0/{name}"), value]).map(drop)
    }

    /// Has all data written to the disks: sets a property in a transaction group, and waits for it.
    fn settle(&self) -> Result<()> {
        self.control(&["zvol", "set", "ashlar:bench=settled", VOLUME]).map(drop)
    }

    /// The volume's requests, and the bios that were merged into others.
    fn counts(&self, way: Way) -> Result<[u64; 2]> {
        let text = self.control(&["get", "sys/block/zd0/stat"])?;
        let numbers: Vec<u64> = text.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let at = match way {
            Way::Read => 0,
            Way::Write => 4,
        };
        let counts = numbers.get(at..at + 2).and_then(|counts| counts.try_into().ok());
        counts.ok_or_else(|| Error::new("not understood", "sys/block/zd0/stat", text.trim()))
    }

    /// The processor time that the daemon and its processes (of the pool, for one) have used.
    fn cpu_time(&self) -> Result<CpuTime> {
        let (path, daemon) = ("/proc", self.daemon.id().to_string());
        let failed = |error| Error::new("cannot read", path, error);
        let mut sum = CpuTime::of(self.daemon.id())?;
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let Some(pid) = pid else { continue };
            // A process may be gone meanwhile. Field 4 is the parent.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            if rest.split_whitespace().nth(1) == Some(daemon.as_str()) {
                sum = sum + CpuTime::of(pid)?;
            }
        }
        Ok(sum)
    }

    /// Sets which merges the loop device's own queue tries.
    fn set_loop_nomerges(&self, value: u8) -> Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let name = device.name().trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/queue/nomerges");
        fs::write(&path, value.to_string()).map_err(|error| Error::new("cannot set", &path, error))
    }

    fn detach(&mut self) -> Result<()> {
        // For whoever gets this loop device next.
        self.set_loop_nomerges(0)?;
        self.device.take().map_or(Ok(()), LoopDevice::end)
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// The loop device is in use, or the daemon did not end well.
    fn end(mut self) -> Result<()> {
        self.detach()?;
        if self.stop() {
            return Ok(());
        }
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        Err(Error::new("did not end well", "ashlar serve", log.trim()))
    }

    /// Whether the daemon has ended well.
    fn stop(&mut self) -> bool {
        if let Ok(Some(status)) = self.daemon.try_wait() {
            return status.success();
        }
        let asked = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let begun = Instant::now();
        while asked.is_ok() && begun.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.daemon.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = self.daemon.kill().and_then(|()| self.daemon.wait());
        tracing::warn!(?ended, "the daemon had to be killed");
        false
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(%error, "the loop device");
        }
        self.stop();
    }
}
