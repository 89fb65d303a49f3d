//! Names: of arrays under `/dev`, of members under `/sys/block`.
//!
//! The rules are mdadm's. The name in an array's superblock is `HOST:NAME` or `NAME`. A name that is
//! a number is the array's number: `host:0` is `md0`. Any other array gets a number counted down from
//! 127 and its name as a link in `/dev/md/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ashlar_md::ondisk::Superblock;
use uuid::Uuid;

/// The first number given to arrays whose name is not a number.
const FIRST_FREE: u32 = 127;
/// The highest number (the kernel's 20 bits of minor numbers).
const MAX_NUMBER: u32 = (1 << 20) - 1;

/// The name of an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayName {
    /// The number: `md127`.
    pub number: u32,
    /// The name in `/dev/md/`.
    pub alias: Option<String>,
}

impl ArrayName {
    /// The name of the device: `md127`.
    pub fn device(&self) -> String {
        format!("md{}", self.number)
    }

    /// Whether `name` names this array: `md127`, or `md/data`.
    pub fn is(&self, name: &str) -> bool {
        let alias = self.alias.as_deref();
        name == self.device() || name.strip_prefix("md/").is_some_and(|name| Some(name) == alias)
    }

    /// The path that users know, as mdadm prints it: `/dev/md/data`, or `/dev/md0`.
    pub fn path(&self) -> String {
        match &self.alias {
            Some(alias) => format!("/dev/md/{alias}"),
            None => format!("/dev/{}", self.device()),
        }
    }
}

/// Assigns unused names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    numbers: BTreeSet<u32>,
    aliases: BTreeSet<String>,
    /// The arrays that have a name, running or not.
    arrays: BTreeMap<Uuid, ArrayName>,
}

impl Names {
    /// The name of the array `uuid`, whose superblock asks for `wanted` (see [`wanted_name`]): the
    /// same at every call.
    pub fn of(&mut self, uuid: Uuid, wanted: &str) -> ArrayName {
        if let Some(name) = self.arrays.get(&uuid) {
            return name.clone();
        }
        let name = self.give(wanted);
        self.arrays.insert(uuid, name.clone());
        name
    }

    /// Whether the array `uuid` has a name.
    pub(crate) fn has(&self, uuid: Uuid) -> bool {
        self.arrays.contains_key(&uuid)
    }

    /// A name for the array whose superblock says `set_name`.
    pub fn give(&mut self, set_name: &str) -> ArrayName {
        let name = short_name(set_name);
        if let Some(number) = number(name).filter(|number| self.numbers.insert(*number)) {
            return ArrayName { number, alias: None };
        }
        let alias = is_file_name(name).then(|| self.give_alias(name));
        ArrayName { number: self.give_number(), alias }
    }

    /// Keeps the number of `device` from arrays, if it is an array's name.
    pub fn reserve(&mut self, device: &str) {
        self.numbers.extend(device.strip_prefix("md").and_then(number));
    }

    /// Releases a name.
    pub fn take_back(&mut self, name: &ArrayName) {
        self.arrays.retain(|_, other| other != name);
        self.numbers.remove(&name.number);
        if let Some(alias) = &name.alias {
            self.aliases.remove(alias);
        }
    }

    fn give_number(&mut self) -> u32 {
        let mut down = (0..=FIRST_FREE).rev();
        let free = down.find(|number| !self.numbers.contains(number));
        let beyond = || (FIRST_FREE + 1..).find(|number| !self.numbers.contains(number));
        let number = free.or_else(beyond).unwrap_or(MAX_NUMBER);
        self.numbers.insert(number);
        number
    }

    fn give_alias(&mut self, name: &str) -> String {
        let numbered = (0..).map(|n| format!("{name}_{n}"));
        let mut all = std::iter::once(name.to_owned()).chain(numbered);
        // The iterator has no end, and finitely many names are taken.
        all.find(|alias| self.aliases.insert(alias.clone())).unwrap_or_default()
    }
}

/// The name that a member's superblock asks for; version 0.90 has no name, so the preferred minor number.
pub fn wanted_name(sb: &Superblock) -> String {
    let minor = sb.preferred_minor().filter(|minor| *minor <= MAX_NUMBER);
    minor.map_or_else(|| sb.name.clone(), |minor| minor.to_string())
}

/// The name without the host that made the array.
pub fn short_name(set_name: &str) -> &str {
    set_name.split_once(':').map_or(set_name, |(_, name)| name)
}

fn number(name: &str) -> Option<u32> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|number| plain && *number <= MAX_NUMBER)
}

/// Whether a name is valid in a directory.
fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c.is_control())
}

/// The array name in a superblock that matches `/dev/md0`, `md0`, `0`, `/dev/md/NAME` or `md/NAME`;
/// `None` for other text.
pub fn parse_array_name(text: &str) -> Option<&str> {
    let text = text.strip_prefix("/dev/").unwrap_or(text);
    if let Some(name) = text.strip_prefix("md/") {
        return is_file_name(name).then_some(name);
    }
    let digits = text.strip_prefix("md").unwrap_or(text);
    number(digits).map(|_| digits)
}

/// A name for the disk at `path` that is not `taken`: the last component of the path, or as many
/// components as make it unique, joined by `!`, the kernel's replacement for a slash in
/// `/sys/block`. The parameters of a URI (`rbd:POOL/IMAGE?conf=FILE`) do not count, unless nothing is named before
/// them (`nbd+unix:///?socket=PATH`).
pub fn unique_name(path: &Path, taken: impl Fn(&str) -> bool) -> String {
    let named = path.to_str().and_then(|text| text.split_once('?')).map(|(named, _)| named);
    let path =
        named.filter(|named| named.contains(':') && !named.ends_with('/')).map_or(path, Path::new);
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let tails = (0..parts.len()).rev().map(|start| parts[start..].join("!").replace('/', ""));
    let numbered = (1..).map(|n| format!("{}#{n}", parts.join("!").replace('/', "")));
    // The numbers have no end, and finitely many names are taken.
    tails.chain(numbered).find(|name| !name.is_empty() && !taken(name)).unwrap_or_default()
}

/// The suffix for partition `number` of a device: the kernel's rule.
pub fn partition_suffix(name: &str, number: u32) -> String {
    let separator = if name.ends_with(|c: char| c.is_ascii_digit()) { "p" } else { "" };
    format!("{separator}{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_and_other_names_count_down() {
        let mut names = Names::default();
        let mut give = |set_name: &str| {
            let name = names.give(set_name);
            (name.device(), name.alias)
        };
        assert_eq!(give("host:0"), ("md0".to_owned(), None));
        assert_eq!(give("5"), ("md5".to_owned(), None));
        assert_eq!(give("host:data"), ("md127".to_owned(), Some("data".to_owned())));
        assert_eq!(give("other:data"), ("md126".to_owned(), Some("data_0".to_owned())));
        assert_eq!(give("other:0"), ("md125".to_owned(), Some("0".to_owned())));
        assert_eq!(give("124"), ("md124".to_owned(), None));
        assert_eq!(give(""), ("md123".to_owned(), None));
        assert_eq!(give("../etc"), ("md122".to_owned(), None));
        assert_eq!(give("99999999999"), ("md121".to_owned(), Some("99999999999".to_owned())));
    }

    #[test]
    fn names_come_back_and_can_be_kept_from_arrays() {
        let mut names = Names::default();
        names.reserve("md0");
        names.reserve("disk.img");
        let zero = names.give("host:0");
        assert_eq!((zero.device(), zero.path()), ("md127".to_owned(), "/dev/md/0".to_owned()));
        assert!(zero.is("md127") && zero.is("md/0") && !zero.is("md0") && !zero.is("0"));
        let five = names.give("5");
        assert_eq!(five.path(), "/dev/md5");
        names.take_back(&zero);
        names.take_back(&five);
        assert_eq!((names.give("h:0"), names.give("5")), (zero, five));
    }

    #[test]
    fn an_array_has_one_name_until_it_is_taken_back() {
        let mut names = Names::default();
        let [first, second] = [1, 2].map(Uuid::from_u128);
        let name = names.of(first, "host:0");
        assert_eq!(names.of(second, "other:0").device(), "md127");
        assert_eq!(names.of(first, "whatever"), name);
        names.take_back(&name);
        assert_eq!(names.of(Uuid::from_u128(3), "5").device(), "md5");
        assert_eq!(names.of(first, "host:5").path(), "/dev/md/5");
    }

    #[test]
    fn numbers_do_not_run_out_at_zero() {
        let mut names = Names::default();
        let all: BTreeSet<u32> = (0..200).map(|_| names.give("").number).collect();
        assert_eq!(all.len(), 200);
    }

    #[test]
    fn array_names_are_read_as_mdadm_reads_them() {
        for (text, name) in [
            ("/dev/md0", Some("0")),
            ("md127", Some("127")),
            ("7", Some("7")),
            ("/dev/md/data", Some("data")),
            ("md/data", Some("data")),
            ("data", None),
            ("disk.img", None),
            ("md", None),
            ("md-1", None),
            ("/dev/md/", None),
            ("md/a/b", None),
        ] {
            assert_eq!(parse_array_name(text), name, "{text}");
        }
    }

    #[test]
    fn names_of_members_are_unique() {
        let paths = ["/a/x.img", "/b/x.img", "y", "/a/x.img", "/a/x.img"].map(Path::new);
        let mut names: Vec<String> = Vec::new();
        for path in paths {
            names.push(unique_name(path, |name| names.iter().any(|other| other == name)));
        }
        assert_eq!(names, ["x.img", "b!x.img", "y", "a!x.img", "!a!x.img"]);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for (uri, name) in [
            ("rbd:pool/space/image@snap?conf=/a/ceph.conf", "image@snap"),
            ("nbd://host/export", "export"),
            ("nbd+unix:///export?socket=/run/a", "export"),
            ("nbd+unix:///?socket=/run/a", "a"),
            ("/a/what?", "what?"),
        ] {
            assert_eq!(unique_name(Path::new(uri), |_| false), name);
        }
    }
}
