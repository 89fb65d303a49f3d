//! Name-value lists: conversion between libnvpair's and ours, only here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::ptr;

use rustix::io::Errno;

use super::symbols;
use crate::protocol::{NvMap, NvValue};

/// libnvpair's list. Opaque.
#[repr(C)]
pub(crate) struct nvlist_t {
    _opaque: [u8; 0],
}

/// A pair of a list. Opaque.
#[repr(C)]
pub(crate) struct nvpair_t {
    _opaque: [u8; 0],
}

symbols! {
    /// sys/nvpair.h, of libnvpair, which libzpool is linked with. The `fnv` functions abort the
    /// process when memory is short; the functions called here cannot fail otherwise.
    NvFunctions {
        fnvlist_alloc: fn() -> *mut nvlist_t;
        fnvlist_free: fn(*mut nvlist_t);
        fnvlist_add_boolean: fn(*mut nvlist_t, *const c_char);
        fnvlist_add_uint64: fn(*mut nvlist_t, *const c_char, u64);
        fnvlist_add_string: fn(*mut nvlist_t, *const c_char, *const c_char);
        fnvlist_add_nvlist: fn(*mut nvlist_t, *const c_char, *mut nvlist_t);
        fnvlist_add_uint64_array: fn(*mut nvlist_t, *const c_char, *const u64, c_uint);
        fnvlist_add_nvlist_array: fn(*mut nvlist_t, *const c_char, *const *mut nvlist_t, c_uint);
        nvlist_next_nvpair: fn(*mut nvlist_t, *const nvpair_t) -> *mut nvpair_t;
        nvpair_name: fn(*const nvpair_t) -> *const c_char;
        nvpair_type: fn(*const nvpair_t) -> c_int;
        nvpair_value_uint64: fn(*const nvpair_t, *mut u64) -> c_int;
        nvpair_value_int32: fn(*const nvpair_t, *mut i32) -> c_int;
        nvpair_value_boolean_value: fn(*const nvpair_t, *mut c_int) -> c_int;
        nvpair_value_string: fn(*const nvpair_t, *mut *const c_char) -> c_int;
        nvpair_value_nvlist: fn(*mut nvpair_t, *mut *mut nvlist_t) -> c_int;
        nvpair_value_uint64_array: fn(*mut nvpair_t, *mut *mut u64, *mut c_uint) -> c_int;
        nvpair_value_nvlist_array: fn(*mut nvpair_t, *mut *mut *mut nvlist_t, *mut c_uint) -> c_int;
    }
}

/// data_type_t of sys/nvpair.h.
mod data_type {
    use std::ffi::c_int;

    pub(super) const BOOLEAN: c_int = 1;
    pub(super) const INT32: c_int = 5;
    pub(super) const UINT64: c_int = 8;
    pub(super) const STRING: c_int = 9;
    pub(super) const UINT64_ARRAY: c_int = 16;
    pub(super) const NVLIST: c_int = 19;
    pub(super) const NVLIST_ARRAY: c_int = 20;
    pub(super) const BOOLEAN_VALUE: c_int = 21;
}

/// A list of libnvpair, freed on drop.
pub(crate) struct Nvlist {
    functions: NvFunctions,
    list: *mut nvlist_t,
}

impl Nvlist {
    /// An empty list.
    pub(crate) fn new(functions: NvFunctions) -> Self {
        // SAFETY: the function has no arguments, and returns a list.
        Self { functions, list: unsafe { (functions.fnvlist_alloc)() } }
    }

    /// The list with the contents of a map.
    ///
    /// # Errors
    /// `EINVAL`: a string has a zero byte.
    pub(crate) fn of(functions: NvFunctions, map: &NvMap) -> Result<Self, Errno> {
        let list = Self::new(functions);
        for (name, value) in map {
            list.add(name, value)?;
        }
        Ok(list)
    }

    /// A list whose ownership a function of libzpool gave away.
    ///
    /// # Safety
    /// No other code frees or changes it.
    pub(crate) unsafe fn owned(functions: NvFunctions, list: *mut nvlist_t) -> Self {
        Self { functions, list }
    }

    /// For a function that only reads it, or adds to it.
    pub(crate) fn as_ptr(&self) -> *mut nvlist_t {
        self.list
    }

    fn add(&self, name: &str, value: &NvValue) -> Result<(), Errno> {
        let functions = &self.functions;
        let name = c_string(name)?;
        let name = name.as_ptr();
        match value {
            // SAFETY: the list is valid, and the function copies the name.
            NvValue::Boolean => unsafe { (functions.fnvlist_add_boolean)(self.list, name) },
            // SAFETY: as above.
            NvValue::Uint64(value) => unsafe {
                (functions.fnvlist_add_uint64)(self.list, name, *value);
            },
            NvValue::String(text) => {
                let text = c_string(text)?;
                // SAFETY: as above; it copies the text.
                unsafe { (functions.fnvlist_add_string)(self.list, name, text.as_ptr()) }
            }
            NvValue::List(map) => {
                let inner = Self::of(*functions, map)?;
                // SAFETY: as above; it copies the list.
                unsafe { (functions.fnvlist_add_nvlist)(self.list, name, inner.list) }
            }
            NvValue::Uint64s(values) => {
                let count = c_uint::try_from(values.len()).map_err(|_| Errno::INVAL)?;
                // SAFETY: as above; it copies `count` numbers.
                unsafe {
                    (functions.fnvlist_add_uint64_array)(self.list, name, values.as_ptr(), count);
                }
            }
            NvValue::Lists(maps) => {
                let lists: Vec<Self> =
                    maps.iter().map(|map| Self::of(*functions, map)).collect::<Result<_, _>>()?;
                let pointers: Vec<*mut nvlist_t> = lists.iter().map(|list| list.list).collect();
                let count = c_uint::try_from(pointers.len()).map_err(|_| Errno::INVAL)?;
                // SAFETY: as above; it copies `count` lists.
                unsafe {
                    (functions.fnvlist_add_nvlist_array)(self.list, name, pointers.as_ptr(), count);
                }
            }
        }
        Ok(())
    }

    /// Its contents. Numbers of other widths become 64 bits wide; values of types without a
    /// counterpart are left out (descriptions of pools and datasets have none).
    pub(crate) fn to_map(&self) -> NvMap {
        // SAFETY: the list is valid.
        unsafe { map_of(&self.functions, self.list) }
    }
}

impl Drop for Nvlist {
    fn drop(&mut self) {
        // SAFETY: this owns it, and it is valid.
        unsafe { (self.functions.fnvlist_free)(self.list) }
    }
}

/// # Safety
/// The list is valid, and no other code changes it.
unsafe fn map_of(functions: &NvFunctions, list: *mut nvlist_t) -> NvMap {
    let mut map = NvMap::new();
    let mut pair = ptr::null_mut();
    loop {
        // SAFETY: the pair is null or of this list, which is valid as guaranteed by the caller.
        pair = unsafe { (functions.nvlist_next_nvpair)(list, pair) };
        if pair.is_null() {
            return map;
        }
        // SAFETY: a pair has a name, which lives as long as the pair.
        let name = unsafe { CStr::from_ptr((functions.nvpair_name)(pair)) };
        // SAFETY: as above.
        if let Some(value) = unsafe { value_of(functions, pair) } {
            map.insert(name.to_string_lossy().into_owned(), value);
        }
    }
}

/// # Safety
/// The pair is of a valid list that no other code changes.
unsafe fn value_of(functions: &NvFunctions, pair: *mut nvpair_t) -> Option<NvValue> {
    // SAFETY: guaranteed by the caller. Each function below is called for its type, writes to the
    // addresses it gets, and the results live as long as the pair.
    unsafe {
        match (functions.nvpair_type)(pair) {
            data_type::BOOLEAN => Some(NvValue::Boolean),
            data_type::BOOLEAN_VALUE => {
                let mut value = 0;
                ((functions.nvpair_value_boolean_value)(pair, &raw mut value) == 0)
                    .then_some(NvValue::Uint64(u64::from(value != 0)))
            }
            data_type::INT32 => {
                let mut value = 0;
                ((functions.nvpair_value_int32)(pair, &raw mut value) == 0)
                    .then_some(NvValue::Uint64(i64::from(value).cast_unsigned()))
            }
            data_type::UINT64 => {
                let mut value = 0;
                ((functions.nvpair_value_uint64)(pair, &raw mut value) == 0)
                    .then_some(NvValue::Uint64(value))
            }
            data_type::STRING => {
                let mut text = ptr::null();
                ((functions.nvpair_value_string)(pair, &raw mut text) == 0)
                    .then(|| NvValue::String(CStr::from_ptr(text).to_string_lossy().into_owned()))
            }
            data_type::NVLIST => {
                let mut list = ptr::null_mut();
                ((functions.nvpair_value_nvlist)(pair, &raw mut list) == 0)
                    .then(|| NvValue::List(map_of(functions, list)))
            }
            data_type::UINT64_ARRAY => {
                let (mut values, mut count) = (ptr::null_mut(), 0);
                let result =
                    (functions.nvpair_value_uint64_array)(pair, &raw mut values, &raw mut count);
                (result == 0).then(|| {
                    NvValue::Uint64s((0..count as usize).map(|at| *values.add(at)).collect())
                })
            }
            data_type::NVLIST_ARRAY => {
                let (mut lists, mut count) = (ptr::null_mut(), 0);
                let result =
                    (functions.nvpair_value_nvlist_array)(pair, &raw mut lists, &raw mut count);
                (result == 0).then(|| {
                    let map_at = |at| map_of(functions, *lists.add(at));
                    NvValue::Lists((0..count as usize).map(map_at).collect())
                })
            }
            _ => None,
        }
    }
}

/// A text as a C string.
///
/// # Errors
/// `EINVAL`: it has a zero byte.
pub(crate) fn c_string(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno::INVAL)
}
