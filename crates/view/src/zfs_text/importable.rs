//! Pools on disks, as `zpool import` prints them.

use ashlar_zfs::ondisk::config::{Health, Node, Pool};
use ashlar_zfs::ondisk::label::PoolState;

/// The description of a pool, as `zpool import` prints it.
pub fn importable_pool(pool: &Pool) -> String {
    let state = word(pool.health);
    let mut text = format!("  pool: {}\n    id: {}\n state: {state}\n", pool.name, pool.guid);
    let in_use = pool.state == PoolState::Active;
    text += match pool.health {
        Health::Unavailable if pool.may_lack_only_logs() => {
            "status: One or more devices are missing from the system.\naction: Attach the missing devices and try again. If they are log devices, the pool can be imported read-only, or with the '-m' flag: what was only in the log is lost.\n"
        }
        Health::Unavailable => {
            "status: One or more devices are missing from the system.\naction: The pool cannot be imported. Attach the missing devices and try again.\n"
        }
        Health::Degraded => {
            "status: One or more devices are missing from the system.\naction: The pool can be imported despite missing or damaged devices.\n"
        }
        Health::Online if in_use => {
            "status: The pool was not exported.\naction: The pool can be imported using its name or numeric identifier, with the '-f' flag if another system has used it last.\n"
        }
        Health::Online => {
            "action: The pool can be imported using its name or numeric identifier.\n"
        }
    };
    text += "config:\n\n";
    let mut rows = vec![(pool.name.clone(), state)];
    for vdev in pool.vdevs.iter().filter(|vdev| !vdev.is_log) {
        add(vdev, 1, &mut rows);
    }
    let logs: Vec<&Node> = pool.vdevs.iter().filter(|vdev| vdev.is_log).collect();
    if !logs.is_empty() {
        rows.push(("logs".to_owned(), ""));
        logs.into_iter().for_each(|log| add(log, 1, &mut rows));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, state) in rows {
        text += format!("\t{name:<width$}  {state}").trim_end();
        text += "\n";
    }
    for problem in &pool.problems {
        text += &format!("\n{problem}\n");
    }
    text
}

fn add(vdev: &Node, depth: usize, rows: &mut Vec<(String, &'static str)>) {
    rows.push((format!("{}{}", "  ".repeat(depth), vdev.name), word(vdev.health)));
    for child in &vdev.children {
        add(child, depth + 1, rows);
    }
}

/// zpool's word for a state.
fn word(health: Health) -> &'static str {
    match health {
        Health::Online => "ONLINE",
        Health::Degraded => "DEGRADED",
        Health::Unavailable => "UNAVAIL",
    }
}
