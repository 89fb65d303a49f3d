//! `md/array_state`, of arrays that run and of those that wait.

use std::sync::Arc;

use ashlar_md::manage::ManageError;

use crate::arrays::{Arrays, End};
use crate::attributes::{AttributeError, Row, Tree};
use crate::detail::INACTIVE;
use crate::view::ArrayView;

/// An array by its name, and if it runs, itself.
struct Named {
    name: String,
    view: Option<Arc<ArrayView>>,
    arrays: Arc<Arrays>,
}

impl Named {
    async fn set(&self, word: &str) -> Result<(), AttributeError> {
        match (word, &self.view) {
            ("clear", _) => self.arrays.end(&self.name, End::Clear).await,
            ("inactive", Some(_)) => self.arrays.end(&self.name, End::Inactive).await,
            ("inactive", None) => Ok(()),
            (_, Some(view)) => Ok(view.array().set_state(word).await?),
            (_, None) => {
                let (array, word) = (self.name.clone(), word.to_owned());
                Err(ManageError::Inactive { array, word }.into())
            }
        }
    }
}

const ROWS: &[Row<Named>] = &[Row::act(
    "array_state",
    |array| match &array.view {
        Some(view) => view.array().state().name().to_owned(),
        None => INACTIVE.to_owned(),
    },
    |array, word| Box::pin(array.set(word)),
)];

impl Tree {
    /// Adds the state of the array `name` to its directory; one that waits has no `view`.
    pub(super) fn add_state(
        &mut self,
        directory: &str,
        name: &str,
        view: Option<&Arc<ArrayView>>,
        arrays: &Arc<Arrays>,
    ) {
        let (name, view) = (name.to_owned(), view.map(Arc::clone));
        let array = Arc::new(Named { name, view, arrays: Arc::clone(arrays) });
        self.add_rows(directory, &array, ROWS);
    }
}
