//! Events of a trace as JSON.

use ashlar_block::trace::Action;
use ashlar_plot::trace::text::Names;
use ashlar_plot::trace::{Payload, Record};
use serde_json::{Value, json};

/// The data of `record` as JSON; times count from `start_ns`.
pub fn event_json(record: &Record, start_ns: u64, device: Option<&str>, names: &Names) -> Value {
    let mut value = json!({
        "device": device,
        "number": record.device.to_string(),
        "thread": record.thread,
        "sequence": record.sequence,
        "time_ns": record.time_ns.saturating_sub(start_ns),
        "process": record.pid,
        "command": names.get(&record.pid),
        "action": record.action.letter(),
        "kind": record.rwbs(),
        "sector": record.sector,
        "sectors": record.sectors(),
        "errno": (record.error as i16).unsigned_abs(),
    });
    match record.payload {
        Payload::None => {}
        Payload::Number(sector) if record.action == Action::Split => {
            value["rest"] = json!(sector);
        }
        Payload::Number(requests) => value["requests"] = json!(requests),
        Payload::Remap { from, sector, .. } => {
            value["from"] = json!({ "number": from.to_string(), "sector": sector });
        }
    }
    value
}
