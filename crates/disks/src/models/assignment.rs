//! Device models of disks in the user's notation: `gp2:3000iops` for all disks,
//! `disk0.img=hdd` for one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ashlar_sim::model::{ModelError, NamedModel};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::options::OptionValue;

/// A model for one disk, or for all disks without one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The disk; `None` for all.
    pub disk: Option<PathBuf>,
    /// Its model.
    pub model: NamedModel,
}

impl Assignment {
    /// The key `model` of a `stack.toml`: a model for all disks, or a table of models by disk.
    ///
    /// # Errors
    /// It is neither.
    pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Self>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a device model, or a table of device models by disk")]
        enum Models {
            All(String),
            ByDisk(BTreeMap<PathBuf, String>),
        }
        let named = |text: String| text.parse::<NamedModel>().map_err(D::Error::custom);
        match Models::deserialize(deserializer)? {
            Models::All(text) => Ok(vec![Self { disk: None, model: named(text)? }]),
            Models::ByDisk(table) => table
                .into_iter()
                .map(|(disk, text)| Ok(Self { disk: Some(disk), model: named(text)? }))
                .collect(),
        }
    }
}

impl OptionValue for Assignment {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.disk.iter_mut().collect()
    }
}

impl FromStr for Assignment {
    type Err = ModelError;

    /// `MODEL` or `DISK=MODEL`. A disk may have any name that does not look like a model, even one
    /// with an equals sign: the text after an equals sign that begins with the name of a preset is
    /// the model.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        if NamedModel::begins(text) {
            return Ok(Self { disk: None, model: text.parse()? });
        }
        let mut cuts = text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]));
        let cut =
            cuts.find(|(_, model)| NamedModel::begins(model)).or_else(|| text.split_once('='));
        let (disk, model) = cut.map_or((None, text), |(disk, model)| (Some(disk.into()), model));
        Ok(Self { disk, model: model.parse()? })
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.disk {
            Some(disk) => write!(f, "{}={}", disk.display(), self.model),
            None => self.model.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_model_is_for_all_disks_or_for_the_one_before_the_equals_sign() {
        let cases = [
            ("hdd", None, "hdd"),
            ("custom:read=1ms,write=2ms", None, "custom:read=1ms,write=2ms"),
            ("disk0.img=hdd", Some("disk0.img"), "hdd"),
            ("/dev/sdb=gp2:burst=4", Some("/dev/sdb"), "gp2:burst=4"),
            ("ram:1G=nvme:latency=1ms", Some("ram:1G"), "nvme:latency=1ms"),
            ("a=b.img=hdd:read=5ms", Some("a=b.img"), "hdd:read=5ms"),
            ("./hdd=hdd", Some("./hdd"), "hdd"),
        ];
        for (text, disk, model) in cases {
            let found: Assignment = text.parse().unwrap();
            assert_eq!(found.disk.as_deref(), disk.map(Path::new), "{text}");
            assert_eq!(found.model.to_string(), model, "{text}");
            assert_eq!(found.to_string(), text);
        }
    }

    #[test]
    fn what_is_neither_is_reported_as_the_model_it_was_to_be() {
        for (text, expected) in [
            ("fast", "no device model `fast`"),
            ("disk.img=fast", "no device model `fast`"),
            ("disk.img=", "no device model ``"),
            ("", "no device model ``"),
            ("gp2:speed=9", "has no `speed`"),
            ("d=hdd:read=9", "`9` is not possible for read"),
        ] {
            let error = text.parse::<Assignment>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
