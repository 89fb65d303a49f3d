//! The system IDs of this host, from LVM's own configuration: a group with another one is another host's.
//!
//! LVM reads `lvm.conf`, which says where the ID comes from, and `lvmlocal.conf` beside it, which takes precedence; see
//! `lvmsystemid(7)`. The
//! directory is `/etc/lvm`, or `$LVM_SYSTEM_DIR`. Without these files this host has no ID, as with LVM.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ashlar_btrfs::csum::ChecksumKind;
use ashlar_lvm::metadata::{SystemIds, system_id};
use ashlar_lvm::text::{self, Node, Section};

/// The directory of LVM's configuration.
const DIRECTORY: &str = "/etc/lvm";
/// LVM's number in the IDs that it derives from that of the machine (`appmachineid`).
const APPLICATION: [u8; 16] = 0xf644_0683_2c21_40e8_ac54_22d1_089a_ae03_u128.to_be_bytes();
/// What SHA-256 takes at a time.
const BLOCK: usize = 64;

/// The system IDs of this host. Logs unusable parts of the configuration. Call this before the process enters its sandbox.
pub fn local_system_ids() -> SystemIds {
    let directory = std::env::var_os("LVM_SYSTEM_DIR").filter(|set: &OsString| !set.is_empty());
    let directory = directory.map_or_else(|| DIRECTORY.into(), PathBuf::from);
    let files = ["lvmlocal.conf", "lvm.conf"].map(|name| read(&directory.join(name)));
    let host = || {
        let system = rustix::system::uname();
        system.nodename().to_str().ok().map(str::to_owned)
    };
    of_configuration(&files, &|path| first_line(path), &host)
}

/// A file of the configuration; empty if it does not exist.
fn read(path: &Path) -> Section {
    let unusable = |why: &dyn std::fmt::Display| {
        let path = path.display();
        tracing::warn!(
            "{path} cannot be used, so it does not say which volume groups are this host's: {why}"
        );
        Section::default()
    };
    match fs::read(path) {
        Ok(bytes) => text::parse(&bytes).unwrap_or_else(|error| unusable(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Section::default(),
        Err(error) => unusable(&error),
    }
}

/// The first line of a file that is neither empty nor a comment, as LVM reads IDs.
fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path);
    let text = text.inspect_err(|error| {
        let path = path.display();
        tracing::warn!("{path} cannot be read, so this host has no system ID for LVM: {error}");
    });
    let text = text.ok()?;
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned)
}

/// The system IDs that `files` say, of which the first counts first.
fn of_configuration(
    files: &[Section],
    first_line: &dyn Fn(&Path) -> Option<String>,
    host: &dyn Fn() -> Option<String>,
) -> SystemIds {
    let value = |section: &str, key: &str| {
        files.iter().find_map(|file| {
            let inside = file.section(section).and_then(|section| section.node(key));
            inside.or_else(|| file.node(&format!("{section}/{key}")))
        })
    };
    let text = |section: &str, key: &str| {
        value(section, key).and_then(Node::as_scalar).and_then(|it| it.as_str())
    };
    let machine = || {
        let etc = text("global", "etc").unwrap_or("/etc");
        first_line(&Path::new(etc).join("machine-id"))
    };
    let source = text("global", "system_id_source").unwrap_or("none").to_ascii_lowercase();
    let own = match source.as_str() {
        "uname" => host(),
        "lvmlocal" => text("local", "system_id").map(str::to_owned),
        "machineid" | "machine-id" => machine(),
        "appmachineid" => machine().and_then(|id| of_machine(&id)),
        "file" => text("global", "system_id_file").and_then(|path| first_line(Path::new(path))),
        _ => None,
    };
    let extra = value("local", "extra_system_ids").and_then(Node::as_list).unwrap_or_default();
    let extra = extra.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect();
    SystemIds { own: own.as_deref().and_then(system_id), extra }
}

/// LVM's ID on a machine, as `sd_id128_get_machine_app_specific(3)` makes it: HMAC-SHA-256, as a random UUID.
fn of_machine(machine: &str) -> Option<String> {
    let machine = uuid::Uuid::parse_str(machine).ok()?.into_bytes();
    let keyed = |pad: u8, message: &[u8]| {
        let mut bytes = vec![pad; BLOCK];
        bytes.iter_mut().zip(machine).for_each(|(byte, key)| *byte ^= key);
        bytes.extend_from_slice(message);
        ChecksumKind::Sha256.compute(&bytes).as_bytes().to_vec()
    };
    let made = keyed(0x5c, &keyed(0x36, &APPLICATION));
    let id = uuid::Builder::from_random_bytes(*made.first_chunk()?).into_uuid();
    Some(id.simple().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IDs that `lvm.conf` and `lvmlocal.conf` say on the host `nas`.
    fn of(global: &str, local: &str) -> SystemIds {
        let files = [local, global].map(|text| text::parse(text.as_bytes()).unwrap());
        let first_line = |path: &Path| match path.to_str()? {
            "/etc/machine-id" => Some("3d1219c7c4c5404aaa1f6d2a48adfda4".to_owned()),
            "/id" => Some("of a file".to_owned()),
            _ => None,
        };
        of_configuration(&files, &first_line, &|| Some("nas".to_owned()))
    }

    fn own(global: &str, local: &str) -> Option<String> {
        of(global, local).own
    }

    /// The last one is what LVM 2.03.16 says on a machine with that number (`lvm systemid`).
    #[test]
    fn each_source_of_the_own_id_is_known() {
        let from = |source: &str| format!("global {{\nsystem_id_source = \"{source}\"\n}}\n");
        let named = "local {\n\tsystem_id = \"a_b c\"\n}";
        assert_eq!(own("", named), None);
        assert_eq!(own(&from("none"), named), None);
        assert_eq!(own(&from("uname"), named).as_deref(), Some("nas"));
        assert_eq!(own("global/system_id_source=\"uname\"", "").as_deref(), Some("nas"));
        assert_eq!(own(&from("LvmLocal"), named).as_deref(), Some("a_bc"));
        assert_eq!(own(&from("lvmlocal"), ""), None);
        assert_eq!(own(&from("file"), ""), None);
        let file = format!("{}global/system_id_file = \"/id\"", from("file"));
        assert_eq!(own(&file, "").as_deref(), Some("ofafile"));
        let machine = own(&from("machineid"), "");
        assert_eq!(machine.as_deref(), Some("3d1219c7c4c5404aaa1f6d2a48adfda4"));
        let derived = own(&from("appmachineid"), "");
        assert_eq!(derived.as_deref(), Some("8904c2aa8c6a4e68973b69d39b56789b"));
    }

    #[test]
    fn other_ids_are_taken_and_the_local_file_counts_first() {
        let global = "# a comment\nglobal { system_id_source = \"uname\" }\nlocal { extra_system_ids = [ \"c\" ] }";
        assert_eq!(of(global, "").extra, ["c"]);
        assert_eq!(of(global, "local { extra_system_ids = [ \"a\", \"b\" ] }").extra, ["a", "b"]);
        assert_eq!(of(global, "local { extra_system_ids = \"a\" }").extra, ["a"]);
        let local = "global { system_id_source = \"none\" }";
        assert_eq!(of(global, local).own, None);
    }
}
