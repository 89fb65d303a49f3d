//! The trace of mapped devices: blktrace's lines of dm. A reader sees all devices of the process,
//! including those of other tests: this one notes only the events of its own thread.

use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::common::{device, disks, gateway, media, write};
use ashlar_block::trace::{self, Action, Detail, Event, Reader};
use ashlar_block::{Bio, Flags, Sector, Sectors};
use ashlar_sim::Sim;

struct Lines {
    thread: ThreadId,
    lines: Mutex<Vec<String>>,
}

impl Reader for Lines {
    fn event(&self, event: &Event<'_>) {
        let detail = match event.detail {
            Detail::From { sector, .. } => format!(" <- {sector}"),
            Detail::Rest(sector) => format!(" / {sector}"),
            Detail::None | Detail::Requests(_) | Detail::Failed(_) => String::new(),
        };
        let is_own = std::thread::current().id() == self.thread;
        if is_own && matches!(event.action, Action::Queue | Action::Remap | Action::Split) {
            let (name, letter) = (event.disk.name(), event.action.letter());
            let line = format!("{name} {letter} {} + {}{detail}", event.sector, event.len);
            self.lines.lock().unwrap().push(line);
        }
    }
}

#[test]
fn a_bio_is_seen_on_its_way_down() {
    let (sim, media) = (Sim::new(1), media(2, 4096));
    let lines = Arc::new(Lines { thread: std::thread::current().id(), lines: Mutex::default() });
    sim.block_on(async {
        let text = "0 16 linear d0 100\n16 32 striped 2 8 d0 200 d1 300";
        let volume = gateway(&device(&sim, &disks(&media), text).await);
        let _watch = trace::watch(lines.clone());
        write(&volume, 8, 24, 1, Flags::empty()).await;
        volume.submit(Bio::discard(Sector(20), Sectors(16))).await.unwrap();
        volume.flush().await.unwrap();
    });
    let want = "dm-0 Q 8 + 24\ndm-0 X 8 + 8 / 16\ndm-0 X 16 + 8 / 24\n\
                d0 A 108 + 8 <- 8\nd0 Q 108 + 8\nd0 A 200 + 8 <- 16\nd0 Q 200 + 8\n\
                d1 A 300 + 8 <- 24\nd1 Q 300 + 8\n\
                dm-0 Q 20 + 16\nd0 A 204 + 8 <- 20\nd1 A 300 + 8 <- 20\nd0 Q 204 + 8\nd1 Q 300 + 8\n\
                dm-0 Q 0 + 0\nd0 A 0 + 0 <- 0\nd0 Q 0 + 0\nd0 A 0 + 0 <- 0\nd1 A 0 + 0 <- 0\n\
                d0 Q 0 + 0\nd1 Q 0 + 0";
    assert_eq!(lines.lines.lock().unwrap().join("\n"), want);
}
