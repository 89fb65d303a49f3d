//! fio as a client.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::common::Outcome;
use crate::load::{Load, Order};

/// What fio did.
pub(crate) struct Done {
    /// I/Os of all jobs.
    pub(crate) ios: u64,
    /// From the first to the last.
    pub(crate) time: Duration,
    /// fio's own CPU time.
    pub(crate) cpu: Duration,
}

/// Runs jobs of fio, a thread each, with these options of its engine. Sequential jobs share the load's span, a part for each.
/// `load.until` is not used.
///
/// # Errors
/// fio could not be started, or an I/O failed.
pub(crate) fn run(engine: &str, load: &Load, jobs: usize, run: Duration) -> Outcome<Done> {
    let rw = match (load.order, load.write) {
        (Order::Random, false) => "randread",
        (Order::Random, true) => "randwrite",
        (Order::Sequential, false) => "read",
        (Order::Sequential, true) => "write",
    };
    let span = load.span.end - load.span.start;
    let part = match load.order {
        Order::Random => span,
        Order::Sequential => span / jobs as u64 / load.bytes * load.bytes,
    };
    let step = if load.order == Order::Random { 0 } else { part };
    let out = Command::new("fio")
        .args(["--name=fio", "--time_based", "--thread", "--norandommap", "--group_reporting"])
        .args(engine.split_whitespace())
        .args(["--output-format=json", &format!("--rw={rw}"), &format!("--numjobs={jobs}")])
        .args([&format!("--bs={}", load.bytes), &format!("--iodepth={}", load.depth)])
        .args([&format!("--offset={}", load.span.start), &format!("--size={part}")])
        .args([&format!("--offset_increment={step}"), &format!("--runtime={}ms", run.as_millis())])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let errors = String::from_utf8_lossy(&out.stderr);
    let failed = || format!("fio: {}\n{text}\n{errors}", out.status);
    // What a library warns of stands before.
    let json = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
    let json: Value = json.filter(|_| out.status.success()).ok_or_else(failed)?;
    let all = &json["jobs"][0];
    let kind = &all[if load.write { "write" } else { "read" }];
    let number = |of: &Value| of.as_f64().ok_or_else(failed);
    let (ios, ms) = (number(&kind["total_ios"])?, number(&kind["runtime"])?);
    // Of one processor, over all jobs.
    let cpu = (number(&all["usr_cpu"])? + number(&all["sys_cpu"])?) / 100.0 * ms * jobs as f64;
    let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    Ok(Done { ios: ios as u64, time: time(ms), cpu: time(cpu) })
}
