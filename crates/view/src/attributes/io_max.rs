//! The rate limits of a volume: `sys/block/NAME/queue/io_max`, with the words of the file `io.max` of control groups.

use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_block::io_max::IoMaxChange;
use ashlar_block::limiter::Limiter;

use super::{AttributeError, Row, Tree};

/// The limits of a volume, and the clock that they are counted by.
struct Limits {
    limiter: Arc<Limiter>,
    runtime: Arc<dyn Runtime>,
}

/// The row of a volume. Other devices have no clients.
const ROWS: &[Row<Limits>] = &[Row::rw(
    "queue/io_max",
    |limits| limits.limiter.max().to_string(),
    |limits, value| {
        let change: IoMaxChange =
            value.parse().map_err(|error| AttributeError::Invalid(format!("{error}")))?;
        limits.limiter.set(&change, &limits.runtime);
        Ok(())
    },
)];

impl Tree {
    /// Adds the limits of the volume `name`.
    pub(crate) fn add_io_max(
        &mut self,
        name: &str,
        limiter: &Arc<Limiter>,
        runtime: &Arc<dyn Runtime>,
    ) {
        let limits = Limits { limiter: Arc::clone(limiter), runtime: Arc::clone(runtime) };
        self.add_rows(&format!("sys/block/{name}"), &Arc::new(limits), ROWS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome;
    use super::*;

    #[test]
    fn a_write_changes_the_words_that_it_names_and_a_wrong_one_none() {
        let (sim, limiter) = (ashlar_sim::Sim::new(1), Arc::<Limiter>::default());
        let mut tree = Tree::default();
        tree.add_io_max("t", &limiter, &sim.runtime());
        let path = "sys/block/t/queue/io_max";
        let read = || tree.read(path).unwrap();
        assert_eq!(read(), "rbps=max wbps=max riops=max wiops=max burst_ms=100");
        assert!(!limiter.is_on());
        assert_eq!(outcome(tree.set(path, "wbps=1M riops=5\n")), Ok(()));
        assert_eq!(read(), "rbps=max wbps=1048576 riops=5 wiops=max burst_ms=100");
        assert!(limiter.is_on());
        for wrong in ["", "wbps", "wbps=2M riops=0", "max"] {
            assert_eq!(outcome(tree.set(path, wrong)).unwrap_err().errno(), 22, "{wrong}");
        }
        assert_eq!(read(), "rbps=max wbps=1048576 riops=5 wiops=max burst_ms=100");
        assert_eq!(outcome(tree.set(path, "wbps=max riops=max")), Ok(()));
        assert!(!limiter.is_on());
    }
}
