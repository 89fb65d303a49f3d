//! Settings of levels with parity, under the kernel's names.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use thiserror::Error;

/// A setting: its name, its possible values, its value in a new array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The kernel's name, or of a setting of ours its own.
    pub name: &'static str,
    least: u32,
    most: u32,
    default: u32,
}

/// All settings, in the order of their names. All but `repair_liar` and `rmw_level` are of the kernel's stripe cache and threads, which
/// have no counterpart here: they are kept, and change nothing.
pub const SETTINGS: [Setting; 6] = [
    Setting { name: "group_thread_cnt", least: 0, most: 8192, default: 0 },
    Setting { name: "preread_bypass_threshold", least: 0, most: 32_768, default: 1 },
    REPAIR_LIAR,
    RMW_LEVEL,
    Setting { name: "skip_copy", least: 0, most: 1, default: 0 },
    Setting { name: "stripe_cache_size", least: 17, most: 32_768, default: 256 },
];

/// When a write changes the old parity instead of making it from all data: never (0), if that reads less (1), also if it reads as
/// much (2).
const RMW_LEVEL: Setting = Setting { name: "rmw_level", least: 0, most: 2, default: 1 };
const RMW_AT: usize = 3;
/// Whether a repair of RAID 6 writes the block that alone makes P and Q wrong, instead of P and Q. Not a setting of the kernel's.
const REPAIR_LIAR: Setting = Setting { name: "repair_liar", least: 0, most: 1, default: 0 };
const LIAR_AT: usize = 2;

/// A value that a setting cannot have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name} must be from {least} to {most}, not {value}")]
pub struct SettingError {
    name: &'static str,
    least: u32,
    most: u32,
    value: u32,
}

/// The settings of an array.
#[derive(Debug)]
pub struct ParitySettings([AtomicU32; SETTINGS.len()]);

impl Default for ParitySettings {
    fn default() -> Self {
        Self(SETTINGS.map(|setting| AtomicU32::new(setting.default)))
    }
}

impl ParitySettings {
    /// The value of the setting with this place in [`SETTINGS`].
    pub fn get(&self, place: usize) -> u32 {
        self.0[place].load(Relaxed)
    }

    /// Sets a value.
    ///
    /// # Errors
    /// The setting cannot have it.
    pub fn set(&self, place: usize, value: u32) -> Result<(), SettingError> {
        let Setting { name, least, most, .. } = SETTINGS[place];
        if !(least..=most).contains(&value) {
            return Err(SettingError { name, least, most, value });
        }
        self.0[place].store(value, Relaxed);
        Ok(())
    }

    /// Whether a repair writes the block that alone makes P and Q wrong.
    pub(super) fn repairs_liars(&self) -> bool {
        self.get(LIAR_AT) != 0
    }

    /// When old parity is changed.
    pub(super) fn rmw_level(&self) -> u32 {
        self.get(RMW_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_kernels_defaults_and_bounds() {
        let settings = ParitySettings::default();
        let all: Vec<u32> = (0..SETTINGS.len()).map(|place| settings.get(place)).collect();
        assert_eq!(all, [0, 1, 0, 1, 0, 256]);
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
        assert_eq!((SETTINGS[LIAR_AT], SETTINGS[RMW_AT]), (REPAIR_LIAR, RMW_LEVEL));
        settings.set(RMW_AT, 2).unwrap();
        assert_eq!(settings.rmw_level(), 2);
        let error = settings.set(RMW_AT, 3).unwrap_err();
        assert_eq!(error.to_string(), "rmw_level must be from 0 to 2, not 3");
        assert_eq!(settings.set(5, 16).unwrap_err().least, 17);
    }
}
