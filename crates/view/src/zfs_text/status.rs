//! The state of pools and their scrubs, as `zpool status` prints it.

use ashlar_md::ondisk::text::CTime;
use ashlar_zfs::protocol::{PoolStatus, ScanStatus, VdevClass, VdevStatus};

use super::nice_bytes;

/// A pool, as `zpool status` prints it.
pub fn pool_status(pool: &PoolStatus) -> String {
    let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.state);
    if pool.scan.is_some() {
        text += &format!("  scan: {}\n", scan_status(pool.scan.as_ref()));
    }
    text += &format!("config:\n\n{}\n", tree(&pool.root));
    text += &match pool.errors {
        0 => "errors: No known data errors\n".to_owned(),
        count => format!("errors: {count} data errors\n"),
    };
    text
}

/// The vdevs with their states and errors.
fn tree(root: &VdevStatus) -> String {
    let mut rows: Vec<(String, Option<&VdevStatus>)> = Vec::new();
    add(root, 0, &mut rows);
    let logs: Vec<&VdevStatus> =
        root.children.iter().filter(|vdev| vdev.class == VdevClass::Log).collect();
    if !logs.is_empty() {
        rows.push(("logs".to_owned(), None));
        logs.into_iter().for_each(|log| add(log, 1, &mut rows));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(10);
    let mut text = format!(
        "\t{:<width$}  {:<8} {:>5} {:>5} {:>5}\n",
        "NAME", "STATE", "READ", "WRITE", "CKSUM"
    );
    for (name, vdev) in rows {
        text += &match vdev {
            None => format!("\t{name}\n"),
            Some(VdevStatus { state, read_errors, write_errors, checksum_errors, .. }) => {
                format!(
                    "\t{name:<width$}  {state:<8} {read_errors:>5} {write_errors:>5} {checksum_errors:>5}\n"
                )
            }
        };
    }
    text
}

fn add<'a>(vdev: &'a VdevStatus, depth: usize, rows: &mut Vec<(String, Option<&'a VdevStatus>)>) {
    rows.push((format!("{}{}", "  ".repeat(depth), vdev.name), Some(vdev)));
    for child in vdev.children.iter().filter(|child| depth > 0 || child.class != VdevClass::Log) {
        add(child, depth + 1, rows);
    }
}

/// The last or running scrub, as `zpool status` describes it.
pub fn scan_status(scan: Option<&ScanStatus>) -> String {
    let Some(scan) = scan else { return "none requested".to_owned() };
    let ScanStatus { function, start_time, end_time, repaired_bytes, errors, .. } = scan;
    let repaired = nice_bytes(*repaired_bytes);
    let (done, all) = (nice_bytes(scan.examined_bytes), nice_bytes(scan.to_examine_bytes));
    let verb = if function == "resilver" { "resilvered" } else { "scrub repaired" };
    match scan.state.as_str() {
        "scanning" => {
            let since = CTime(*start_time);
            format!(
                "{function} in progress since {since}\n\t{done} / {all} issued, {repaired} repaired"
            )
        }
        "paused" => format!("{function} paused\n\t{done} / {all} issued, {repaired} repaired"),
        "canceled" => format!("{function} canceled on {}", CTime(*end_time)),
        _ => {
            let took = end_time.saturating_sub(*start_time);
            let (hours, minutes, seconds) = (took / 3600, took / 60 % 60, took % 60);
            let at = CTime(*end_time);
            format!(
                "{verb} {repaired} in {hours:02}:{minutes:02}:{seconds:02} with {errors} errors on {at}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(name: &str, class: VdevClass, children: Vec<VdevStatus>) -> VdevStatus {
        VdevStatus {
            name: name.to_owned(),
            class,
            state: "ONLINE".to_owned(),
            read_errors: 0,
            write_errors: 0,
            checksum_errors: 3,
            children,
        }
    }

    #[test]
    fn the_tree_is_zpools() {
        use VdevClass::{Log, Normal};
        let leaf = |name: &str| vdev(name, Normal, Vec::new());
        let mirror = vdev("mirror-0", Normal, vec![leaf("/d/a"), leaf("/d/b")]);
        let root = vdev("tank", Normal, vec![mirror, vdev("/d/log", Log, Vec::new())]);
        let expected = "\
\tNAME        STATE     READ WRITE CKSUM
\ttank        ONLINE       0     0     3
\t  mirror-0  ONLINE       0     0     3
\t    /d/a    ONLINE       0     0     3
\t    /d/b    ONLINE       0     0     3
\tlogs
\t  /d/log    ONLINE       0     0     3
";
        assert_eq!(tree(&root), expected);
    }

    #[test]
    fn a_scrub_is_told_as_zpool_does() {
        let scan = ScanStatus {
            function: "scrub".to_owned(),
            state: "finished".to_owned(),
            start_time: 1_000_000_000,
            end_time: 1_000_003_723,
            to_examine_bytes: 1 << 20,
            examined_bytes: 1 << 20,
            repaired_bytes: 0,
            errors: 0,
        };
        let text = "scrub repaired 0B in 01:02:03 with 0 errors on Sun Sep  9 02:48:43 2001";
        assert_eq!(scan_status(Some(&scan)), text);
        let paused = ScanStatus { state: "paused".to_owned(), ..scan };
        assert!(scan_status(Some(&paused)).starts_with("scrub paused\n"));
    }
}
