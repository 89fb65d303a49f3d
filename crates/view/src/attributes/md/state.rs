//! `md/array_state` of running and of waiting arrays.

use std::sync::Arc;

use ashlar_md::{ArrayState, ManageError};
use ashlar_stack::incremental::Turn;
use ashlar_stack::view::ArrayView;

use crate::attributes::{AttributeError, End, EnderSource, Row, Tree};
use crate::detail::INACTIVE;

/// An array by name, with its view if it is running.
struct NamedArray {
    name: String,
    view: Option<Arc<ArrayView>>,
    ender: Arc<EnderSource>,
}

impl NamedArray {
    async fn set(&self, word: &str, turn: Turn) -> Result<(), AttributeError> {
        match (word, &self.view) {
            ("clear", _) => self.ender.end(&self.name, End::Clear, turn).await,
            ("inactive", Some(_)) => self.ender.end(&self.name, End::Inactive, turn).await,
            ("inactive", None) => Ok(()),
            ("readonly", Some(view)) if view.state() != ArrayState::ReadOnly => {
                self.ender.end(&self.name, End::Writes("readonly"), turn).await
            }
            ("read-auto", Some(view)) if !is_only_read(view.state()) => {
                self.ender.end(&self.name, End::Writes("read-auto"), turn).await
            }
            (_, Some(view)) => Ok(view.set_state(&turn, word).await?),
            (_, None) => {
                let (array, word) = (self.name.clone(), word.to_owned());
                Err(ManageError::Inactive { array, word }.into())
            }
        }
    }
}

fn is_only_read(state: ArrayState) -> bool {
    matches!(state, ArrayState::ReadOnly | ArrayState::ReadAuto)
}

const ROWS: &[Row<NamedArray>] = &[Row::change(
    "array_state",
    |array| match &array.view {
        Some(view) => view.state().name().to_owned(),
        None => INACTIVE.to_owned(),
    },
    |array, word, turn| Box::pin(array.set(word, turn)),
)];

impl Tree {
    /// Adds `array_state` to the directory of the array `name`; a waiting array has no `view`.
    pub(super) fn add_state(
        &mut self,
        directory: &str,
        name: &str,
        view: Option<&Arc<ArrayView>>,
        ender: &Arc<EnderSource>,
    ) {
        let (name, view) = (name.to_owned(), view.map(Arc::clone));
        let array = Arc::new(NamedArray { name, view, ender: Arc::clone(ender) });
        self.add_rows(directory, &array, ROWS);
    }
}
