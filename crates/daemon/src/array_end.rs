//! Stops one array while the daemon runs: `clear` and `inactive` written to its `array_state`, as by `mdadm --stop`; or its writes:
//! `readonly` and `read-auto`, as by `mdadm --readonly`. As in the kernel, neither happens while the array is in use.
//!
//! Any thread may write attributes; arrays stop on the main one, within the turn of the writer: no device is built on
//! the array meanwhile, and the daemon's shutdown waits for the array's.

use std::sync::{Arc, Weak};

use ashlar_block::LocalFuture;
use ashlar_engine::{Handle, ReceiveError};
use ashlar_stack::arrays::Volume;
use ashlar_stack::devices::{Device, Role};
use ashlar_stack::incremental::Turn;
use ashlar_view::attributes::{AttributeError, End};

use crate::clients::Clients;
use crate::incremental::log_notes;

/// See the module text.
pub(crate) struct ArrayEnd {
    pub(crate) clients: Arc<Clients>,
}

impl ArrayEnd {
    /// Stops arrays from now on, on the current thread.
    pub(crate) fn begin(self: &Arc<Self>) {
        let (main, this) = (Handle::current(), Arc::downgrade(self));
        self.clients.attributes.set_ender(Box::new(move |name, how, turn| {
            let (main, this, name) = (main.clone(), Weak::clone(&this), name.to_owned());
            Box::pin(async move {
                let ended = main.spawn_on(move || async move {
                    match this.upgrade() {
                        Some(this) => this.end(&name, how, turn).await,
                        None => Err(about_to_end()),
                    }
                });
                ended.await.unwrap_or_else(|ReceiveError| Err(about_to_end()))
            }) as LocalFuture<'static, _>
        }));
    }

    /// Stops the array called `name`, or its writes, on the thread that stops arrays.
    ///
    /// # Errors
    /// It is in use, or could not be marked clean.
    pub(crate) async fn end(
        &self,
        name: &str,
        how: End,
        mut turn: Turn,
    ) -> Result<(), AttributeError> {
        let what = match how {
            End::Clear | End::Inactive => "be stopped",
            End::Writes(_) => "become read-only",
        };
        let busy = |why: &dyn std::fmt::Display| {
            AttributeError::Busy(format!("{name} cannot {what}: {why}"))
        };
        let Clients { devices: all, arrays, .. } = &*self.clients;
        if let Some(waiting) = arrays.find_waiting(name) {
            match how {
                // The end of the turn closes the disks.
                End::Clear => turn.release(&waiting.name),
                End::Inactive => {}
                End::Writes(_) => return Err(AttributeError::NotFound),
            }
            return Ok(());
        }
        let is_meant = |device: &Device| device.kind.is_array() && device.name == name;
        let devices = all.with_partitions(is_meant);
        let devices = devices.map_err(|above| busy(&format_args!("{above} is made of it")))?;
        for device in &devices {
            if let Some(whose) = belongs_to(device.role) {
                return Err(busy(&format_args!("{} is {whose}", device.name)));
            }
        }
        drop(devices);
        if let End::Writes(word) = how {
            let volume = arrays.find(name).ok_or(AttributeError::NotFound)?;
            // Whoever opens it from then on finds it read-only.
            let closed = self.clients.shut(name, name).await.map_err(|why| busy(&why))?;
            let set = volume.view.set_state(&turn, word).await;
            closed.reopen();
            return Ok(set?);
        }
        let volume = arrays.take_out(name).ok_or(AttributeError::NotFound)?;
        let hidden = match self.clients.hide(is_meant, name).await {
            Ok(hidden) => hidden,
            Err(why) => {
                arrays.put_back(volume);
                return Err(busy(&why));
            }
        };
        let Volume { name: full_name, view, bytes: _ } = volume;
        let stopped = view.stop(&turn).await;
        drop(hidden);
        if how == End::Clear || !turn.keep_stopped(&full_name, &view).await {
            turn.release(&full_name);
        }
        log_notes(&turn.take_notes());
        stopped.map_err(|status| {
            let why = format!("{name} has stopped, but could not be marked clean: {status}");
            tracing::error!("{why}");
            AttributeError::Invalid(why)
        })
    }
}

/// The larger device that a device with this role is part of, if any.
fn belongs_to(role: Role) -> Option<&'static str> {
    match role {
        Role::Volume | Role::Partitioned | Role::Refused | Role::Former => None,
        Role::Member(_) => Some("a member of another array"),
        Role::Held(what, _) => Some(what),
    }
}

fn about_to_end() -> AttributeError {
    AttributeError::Busy("the daemon is about to end".to_owned())
}
