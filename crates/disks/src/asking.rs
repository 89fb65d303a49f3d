//! Questions that wait for a file system: on a thread of the pool, with a deadline.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ashlar_client::disk_path::{Identity, identity};
use ashlar_control::error::{Error, Result};
use ashlar_engine::{blocking, timeout};

/// How long a file system may take to answer a reactor's task.
const ANSWER: Duration = Duration::from_secs(10);
/// The most questions that wait for file systems at a time.
const MOST_ASKED: usize = 8;
/// How often to check this.
const RETRY: Duration = Duration::from_millis(20);

/// Runs `ask`, which waits for the file system of `path`, on a thread of the pool: the file system may have a server that never
/// responds, and no serving thread must wait for it.
///
/// # Errors
/// No answer came in time. It may still come: what `ask` returns then is dropped.
pub async fn asked<T, F>(path: &Path, ask: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Path) -> T + Send + 'static,
{
    asked_within(ANSWER, path, ask).await
}

async fn asked_within<T, F>(limit: Duration, path: &Path, ask: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Path) -> T + Send + 'static,
{
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    struct Place;
    impl Drop for Place {
        fn drop(&mut self) {
            ASKED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let asking = async {
        // File systems that do not respond keep their threads: the pool needs others for its other work.
        while ASKED.load(Ordering::Relaxed) >= MOST_ASKED {
            ashlar_engine::sleep(RETRY).await;
        }
        ASKED.fetch_add(1, Ordering::Relaxed);
        let (place, wanted) = (Place, path.to_owned());
        blocking::run(move || {
            let answer = ask(&wanted);
            drop(place);
            answer
        })
        .await
    };
    match timeout(limit, pin!(asking)).await {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(why)) => Err(Error::new("cannot ask for", path.display(), why)),
        None => {
            let why = format!("no answer within {} s", limit.as_secs());
            let error = Error::new("its file system does not respond", path.display(), why);
            Err(error.hint("check the server of this mount: findmnt -T PATH shows it"))
        }
    }
}

/// As [`identity`], for a reactor's task.
///
/// # Errors
/// As [`asked`].
pub async fn identity_in_task(path: &Path) -> Result<Option<Identity>> {
    asked(path, identity).await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError, mpsc};

    use super::*;
    use crate::reactor;

    /// These tests count the threads that wait.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A file system that never answers has its deadline, and leaves threads of the pool to others.
    #[test]
    fn a_question_to_a_silent_file_system_has_a_deadline() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        reactor().unwrap().block_on(async {
            let (limit, path) = (Duration::from_millis(50), Path::new("/some/where"));
            let waiting = Arc::new(AtomicUsize::new(0));
            let mut answers = Vec::new();
            for _ in 0..MOST_ASKED + 2 {
                let (answer, answered) = mpsc::channel::<()>();
                answers.push(answer);
                let waiting = Arc::clone(&waiting);
                let asking = asked_within(limit, path, move |_| {
                    waiting.fetch_add(1, Ordering::Relaxed);
                    answered.recv()
                });
                let error = asking.await.unwrap_err().to_string();
                assert!(
                    error.contains("/some/where") && error.contains("does not respond"),
                    "{error}"
                );
            }
            let waiting = waiting.load(Ordering::Relaxed);
            assert!((1..=MOST_ASKED).contains(&waiting), "{waiting} threads wait");
            assert_eq!(blocking::run(|| 5).await.unwrap(), 5);
            answers.clear();
            assert_eq!(asked(path, |_| 6).await.unwrap(), 6);
        });
    }

    /// What waits holds up neither the reactor nor, once its answer comes, a later question.
    #[test]
    fn a_question_to_a_file_system_leaves_the_reactor_free() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        reactor().unwrap().block_on(async {
            let (answer, answered) = mpsc::channel();
            let path = Path::new("/some/where");
            let asking = asked(path, move |path| (path.to_owned(), answered.recv()));
            let mut asking = pin!(asking);
            assert!(timeout(Duration::from_millis(1), asking.as_mut()).await.is_none());
            answer.send(7).unwrap();
            assert_eq!(asking.await.unwrap(), (path.to_owned(), Ok(7)));
            for _ in 0..2 * MOST_ASKED {
                assert!(identity_in_task(Path::new("/proc/self")).await.unwrap().is_some());
            }
        });
    }
}
