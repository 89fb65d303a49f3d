//! The future that devices and runtimes return.

use std::future::Future;
use std::pin::Pin;

/// A future that stays on its reactor's thread.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
