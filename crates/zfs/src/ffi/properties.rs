//! libzpool's tables of properties: their names, types and words.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use rustix::io::Errno;

use super::kernel::Zfs;
use super::nvlist::c_string;
use super::symbols;

symbols! {
    /// zfs_prop.h and sys/fs/zfs.h. Properties are identified by name: their numbers differ between releases.
    PropertyFunctions {
        zprop_iter_common: fn(unsafe extern "C" fn(c_int, *mut c_void) -> c_int, *mut c_void, c_int, c_int, c_int) -> c_int;
        zfs_prop_valid_for_type: fn(c_int, c_int, c_int) -> c_int;
        zfs_prop_to_name: fn(c_int) -> *const c_char;
        zfs_prop_get_type: fn(c_int) -> c_int;
        zfs_prop_readonly: fn(c_int) -> c_int;
        zfs_prop_setonce: fn(c_int) -> c_int;
        zfs_prop_inheritable: fn(c_int) -> c_int;
        zfs_prop_default_numeric: fn(c_int) -> u64;
        zfs_prop_default_string: fn(c_int) -> *const c_char;
        zfs_prop_string_to_index: fn(c_int, *const c_char, *mut u64) -> c_int;
        zfs_prop_index_to_string: fn(c_int, u64, *mut *const c_char) -> c_int;
        zfs_prop_user: fn(*const c_char) -> c_int;
        zfs_prop_values: fn(c_int) -> *const c_char;
        zpool_prop_values: fn(c_int) -> *const c_char;
        zpool_prop_to_name: fn(c_int) -> *const c_char;
        zpool_prop_get_type: fn(c_int) -> c_int;
        zpool_prop_readonly: fn(c_int) -> c_int;
        zpool_prop_setonce: fn(c_int) -> c_int;
        zpool_prop_default_numeric: fn(c_int) -> u64;
        zpool_prop_default_string: fn(c_int) -> *const c_char;
        zpool_prop_string_to_index: fn(c_int, *const c_char, *mut u64) -> c_int;
        zpool_prop_index_to_string: fn(c_int, u64, *mut *const c_char) -> c_int;
    }
}

/// zfs_type_t of sys/fs/zfs.h: what a property applies to.
pub(crate) mod subject {
    use std::ffi::c_int;

    pub(crate) const FILESYSTEM: c_int = 1;
    pub(crate) const SNAPSHOT: c_int = 2;
    pub(crate) const VOLUME: c_int = 4;
    pub(crate) const POOL: c_int = 8;
}

/// The type of a property's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Any number.
    Number,
    /// Any text.
    Text,
    /// A word of a list, stored as its number.
    Index,
}

/// A property in libzpool's tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// Its number in this release.
    number: c_int,
    /// Its name.
    pub(crate) name: String,
    /// Its values' type.
    pub(crate) kind: Kind,
    /// It cannot be set (except at creation, if `set_once`).
    pub(crate) read_only: bool,
    /// It can only be set when the dataset or pool is created.
    pub(crate) set_once: bool,
    /// Descendants inherit it.
    pub(crate) inheritable: bool,
    /// The default of a number or word.
    pub(crate) default_number: u64,
    /// The default of a text.
    pub(crate) default_text: String,
    /// What it applies to, a sum of [`subject`]s.
    pub(crate) subjects: c_int,
}

/// All properties of this release, in ZFS's order.
pub(crate) struct Properties {
    dataset: Vec<Descriptor>,
    pool: Vec<Descriptor>,
    hidden_of_pools: Vec<Descriptor>,
}

impl Properties {
    pub(super) fn read(functions: &PropertyFunctions) -> Self {
        let subjects = [subject::FILESYSTEM, subject::VOLUME, subject::SNAPSHOT];
        let of_dataset = |number| {
            // SAFETY: `number` is that of a dataset property.
            let has =
                |subject| unsafe { (functions.zfs_prop_valid_for_type)(number, subject, 0) } != 0;
            let all = subjects.into_iter().filter(|subject| has(*subject)).sum();
            describe(functions, number, all)
        };
        let dataset = numbers(functions, subject::FILESYSTEM, false);
        let dataset = dataset.into_iter().map(of_dataset).collect();
        let of_pools = |numbers: Vec<c_int>| -> Vec<Descriptor> {
            let of_pool = |number| describe(functions, number, subject::POOL);
            numbers.into_iter().map(of_pool).collect()
        };
        let pool = of_pools(numbers(functions, subject::POOL, false));
        let mut hidden_of_pools = of_pools(numbers(functions, subject::POOL, true));
        hidden_of_pools.retain(|property| !pool.contains(property));
        Self { dataset, pool, hidden_of_pools }
    }

    /// The properties of datasets of this kind.
    pub(crate) fn of_subject(&self, subject: c_int) -> impl Iterator<Item = &Descriptor> {
        self.dataset.iter().filter(move |known| known.subjects & subject != 0)
    }

    /// The properties of pools, except the hidden ones.
    pub(crate) fn of_pools(&self) -> &[Descriptor] {
        &self.pool
    }

    /// The properties of pools that ZFS shows only when they are requested by name.
    pub(crate) fn hidden_of_pools(&self) -> &[Descriptor] {
        &self.hidden_of_pools
    }

    /// A dataset's property.
    pub(crate) fn dataset(&self, name: &str) -> Option<&Descriptor> {
        self.dataset.iter().find(|known| known.name == name)
    }

    /// A pool's property that is not hidden.
    pub(crate) fn pool(&self, name: &str) -> Option<&Descriptor> {
        self.pool.iter().find(|known| known.name == name)
    }
}

/// ZPROP_CONT of sys/fs/zfs.h: continue with the next property.
const CONTINUE: c_int = -2;

unsafe extern "C" fn collect(number: c_int, into: *mut c_void) -> c_int {
    // SAFETY: `numbers` passes its vector, and does not use it before the iteration ends.
    unsafe { (*into.cast::<Vec<c_int>>()).push(number) };
    CONTINUE
}

/// The numbers of all properties in this subject's table, in the table's order.
fn numbers(functions: &PropertyFunctions, subject: c_int, with_hidden: bool) -> Vec<c_int> {
    let mut numbers = Vec::new();
    let (hidden, into) = (c_int::from(with_hidden), (&raw mut numbers).cast());
    // SAFETY: libzpool has filled its tables; `into` points to the vector that `collect` expects.
    unsafe { (functions.zprop_iter_common)(collect, into, hidden, 0, subject) };
    numbers
}

fn describe(functions: &PropertyFunctions, number: c_int, subjects: c_int) -> Descriptor {
    let pool = subjects == subject::POOL;
    // SAFETY: `number` is that of a property; names and texts are constants of the library.
    unsafe {
        let (name, kind, read_only, set_once) = if pool {
            (
                (functions.zpool_prop_to_name)(number),
                (functions.zpool_prop_get_type)(number),
                (functions.zpool_prop_readonly)(number),
                (functions.zpool_prop_setonce)(number),
            )
        } else {
            (
                (functions.zfs_prop_to_name)(number),
                (functions.zfs_prop_get_type)(number),
                (functions.zfs_prop_readonly)(number),
                (functions.zfs_prop_setonce)(number),
            )
        };
        // zprop_type_t of zfs_prop.h
        let kind = match kind {
            0 => Kind::Number,
            1 => Kind::Text,
            _ => Kind::Index,
        };
        let (default_number, default_text) = match (kind, pool) {
            (Kind::Text, true) => (0, (functions.zpool_prop_default_string)(number)),
            (Kind::Text, false) => (0, (functions.zfs_prop_default_string)(number)),
            (_, true) => ((functions.zpool_prop_default_numeric)(number), ptr::null()),
            (_, false) => ((functions.zfs_prop_default_numeric)(number), ptr::null()),
        };
        Descriptor {
            number,
            name: text(name),
            kind,
            read_only: read_only != 0,
            set_once: set_once != 0,
            inheritable: !pool && (functions.zfs_prop_inheritable)(number) != 0,
            default_number,
            default_text: text(default_text),
            subjects,
        }
    }
}

/// # Safety
/// `pointer` is null or points to a C string.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

impl Zfs {
    /// The number of one of a property's words.
    pub(crate) fn index_of(&self, property: &Descriptor, word: &str) -> Option<u64> {
        let word = c_string(word).ok()?;
        let mut index = 0;
        let find = if property.subjects == subject::POOL {
            self.property.zpool_prop_string_to_index
        } else {
            self.property.zfs_prop_string_to_index
        };
        // SAFETY: the number is that of a property in this table; the function writes `index`.
        let result = unsafe { find(property.number, word.as_ptr(), &raw mut index) };
        (result == 0).then_some(index)
    }

    /// The word for one of a property's numbers.
    pub(crate) fn word_of(&self, property: &Descriptor, index: u64) -> Option<String> {
        let mut word = ptr::null();
        let find = if property.subjects == subject::POOL {
            self.property.zpool_prop_index_to_string
        } else {
            self.property.zfs_prop_index_to_string
        };
        // SAFETY: the number is that of a property in this table; the function writes `word`, a constant.
        let result = unsafe { find(property.number, index, &raw mut word) };
        // SAFETY: as above.
        (result == 0).then(|| unsafe { text(word) })
    }

    /// The words that a property can have, as ZFS lists them.
    pub(crate) fn words_of(&self, property: &Descriptor) -> String {
        let values = if property.subjects == subject::POOL {
            self.property.zpool_prop_values
        } else {
            self.property.zfs_prop_values
        };
        // SAFETY: the number is that of a property in this table; the text is a constant of the library.
        unsafe { text(values(property.number)) }
    }

    /// Whether users may give this name to a property of their own.
    pub(crate) fn is_user_property(&self, name: &str) -> Result<bool, Errno> {
        let name = c_string(name)?;
        // SAFETY: the function only reads the name.
        Ok(unsafe { (self.property.zfs_prop_user)(name.as_ptr()) } != 0)
    }
}
