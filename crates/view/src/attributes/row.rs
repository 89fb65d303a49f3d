//! What a table of attributes is made of: rows, how they are set, and what is at a path.

use std::sync::Arc;

use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_stack::incremental::Turn;

use super::AttributeError;

/// Parses the value of an attribute as the kernel's `kstrtou64` with base 10 does.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, AttributeError> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let value: Option<u64> = digits.parse().ok().filter(|_| plain);
    let value =
        value.ok_or_else(|| AttributeError::Invalid(format!("`{text}` is not a number")))?;
    T::try_from(value).map_err(|_| AttributeError::Invalid(format!("{value} is too large")))
}

/// Sets a value of a `T`, at once.
pub(crate) type ImmediateSetter<T> = fn(&T, &str) -> Result<(), AttributeError>;

/// Sets a value of a `T`; may take a while.
pub(crate) type DeferredSetter<T> =
    for<'a> fn(&'a T, &'a str) -> LocalFuture<'a, Result<(), AttributeError>>;

/// Changes the stack, within a turn.
pub(crate) type Changer<T> =
    for<'a> fn(&'a T, &'a str, Turn) -> LocalFuture<'a, Result<(), AttributeError>>;

/// How a value is set. The caller has removed the final newline.
pub(crate) enum Setter<T> {
    Now(ImmediateSetter<T>),
    Later(DeferredSetter<T>),
    Change(Changer<T>),
}

// Derived impls would require `T: Clone` and `T: Copy`.
impl<T> Clone for Setter<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Setter<T> {}

/// A row of the table of `T`'s attributes.
pub(crate) struct Row<T> {
    /// The path below the directory of the `T`.
    pub(crate) name: &'static str,
    /// The text, with or without the final newline.
    pub(crate) get: Option<fn(&T) -> String>,
    /// Sets the value.
    pub(crate) set: Option<Setter<T>>,
}

impl<T> Row<T> {
    /// A row that can be read.
    pub(crate) const fn ro(name: &'static str, get: fn(&T) -> String) -> Self {
        Self { name, get: Some(get), set: None }
    }

    /// A row that can be read and written.
    pub(crate) const fn rw(
        name: &'static str,
        get: fn(&T) -> String,
        set: ImmediateSetter<T>,
    ) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Now(set)) }
    }

    /// A row that can be read and written, where writing takes a while.
    pub(crate) const fn act(
        name: &'static str,
        get: fn(&T) -> String,
        set: DeferredSetter<T>,
    ) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Later(set)) }
    }

    /// A row that can be read, and whose writing changes the stack.
    pub(crate) const fn change(name: &'static str, get: fn(&T) -> String, set: Changer<T>) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Change(set)) }
    }

    /// A row that can only be written.
    pub(crate) const fn wo(name: &'static str, set: DeferredSetter<T>) -> Self {
        Self { name, get: None, set: Some(Setter::Later(set)) }
    }
}

/// The kind of node at a path.
#[derive(Clone)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A symlink to this target.
    Symlink(String),
    /// An attribute, and how it may be accessed.
    Attribute {
        /// Whether it can be read.
        readable: bool,
        /// Whether it can be written.
        writable: bool,
    },
    /// A volume.
    Volume(Arc<ByteVolume>),
}
