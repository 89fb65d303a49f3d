//! The live table: a terminal, and the threads that send events to the thread that draws.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_client::client::Client;
use ashlar_client::interface::Sample;
use ashlar_control::error::{Error, Result};
use ashlar_engine::signal::{self, Signal};
use crossterm::event::{self, Event, KeyEvent, KeyEventKind};

use crate::Options;
use crate::rates::Interval;
use crate::screen::{Theme, draw};
use crate::view::{Outcome, View};

/// The signals that end the program, which first restores the terminal.
const ENDS: [Signal; 3] = [Signal::TERM, Signal::HUP, Signal::INT];

/// An event.
enum Message {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    Sample(Result<Box<Sample>>),
    /// The terminal cannot be read.
    Unreadable(io::Error),
    Signal,
    /// A thread has ended by a panic, whose message is on the terminal.
    Panicked,
}

/// Reports a thread that panics.
struct Told(Sender<Message>);

impl Drop for Told {
    fn drop(&mut self) {
        if thread::panicking() {
            // Without a receiver, the program ends anyway.
            let (Ok(()) | Err(_)) = self.0.send(Message::Panicked);
        }
    }
}

/// Restores the terminal.
struct Restores;

impl Drop for Restores {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let (Ok(()) | Err(_)) = ratatui::try_restore();
    }
}

fn no_terminal(why: io::Error) -> Error {
    Error::plain("cannot use the terminal", why)
}

/// Shows the table until the user quits.
///
/// # Errors
/// Standard input or output is not a terminal; the daemon has ended.
pub fn run(mut client: Client, options: &Options) -> Result<()> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let error = Error::usage("the live table needs a terminal for its input and output");
        return Err(error.hint("ashlar top --batch prints tables, ashlar top --json one interval"));
    }
    let first = client.sample()?;
    // All threads inherit this.
    signal::block(&ENDS).map_err(no_terminal)?;
    // Switches to single keys, without discarding typed input, before anything is drawn: once the table is visible, no key
    // is held back or lost.
    let restores = Restores;
    let terminal = ratatui::try_init().map_err(no_terminal)?;
    let (sender, messages) = channel();
    let (pace, paces) = channel();
    start(&sender, read_keys);
    start(&sender, wait_for_signal);
    let delay = options.delay;
    start(&sender, move |sender| take_samples(client, delay, &paces, sender));
    let result = show(terminal, first, options, &messages, &pace);
    drop(restores);
    result
}

/// Starts a thread that sends messages.
fn start(sender: &Sender<Message>, work: impl FnOnce(&Sender<Message>) + Send + 'static) {
    let told = Told(sender.clone());
    thread::spawn(move || work(&told.0));
}

fn read_keys(sender: &Sender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Message::Key(key),
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(
                Event::Key(_)
                | Event::Mouse(_)
                | Event::FocusGained
                | Event::FocusLost
                | Event::Paste(_),
            ) => continue,
            Err(error) => Message::Unreadable(error),
        };
        let is_last = matches!(message, Message::Unreadable(_));
        if sender.send(message).is_err() || is_last {
            return;
        }
    }
}

fn wait_for_signal(sender: &Sender<Message>) {
    // Without a receiver, and if signals cannot be awaited, there is nothing to do.
    if signal::receive(&ENDS).is_ok() {
        let (Ok(()) | Err(_)) = sender.send(Message::Signal);
    }
}

fn take_samples(
    mut client: Client,
    mut delay: Duration,
    paces: &Receiver<Duration>,
    sender: &Sender<Message>,
) {
    let mut last = Instant::now();
    loop {
        match paces.recv_timeout((last + delay).saturating_duration_since(Instant::now())) {
            Ok(other) => delay = other,
            Err(RecvTimeoutError::Timeout) => {
                last = Instant::now();
                let sample = client.sample().map(Box::new);
                let is_last = sample.is_err();
                if sender.send(Message::Sample(sample)).is_err() || is_last {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Draws, and draws again after each message, until one ends it.
fn show(
    mut terminal: ratatui::DefaultTerminal,
    first: Sample,
    options: &Options,
    messages: &Receiver<Message>,
    pace: &Sender<Duration>,
) -> Result<()> {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = Theme::new(has_colours);
    let mut view = View::new(options);
    let (mut last, mut interval) = (first, None);
    let mut height = 0;
    loop {
        let drawn = terminal.draw(|frame| {
            height = draw(frame.buffer_mut(), &mut view, interval.as_ref(), theme);
        });
        drawn.map_err(no_terminal)?;
        match messages.recv() {
            Ok(Message::Key(key)) => match view.key(key, interval.as_ref(), height) {
                Outcome::Draw => {}
                // The thread that takes samples lives as long as this one.
                Outcome::Pace(delay) => {
                    let (Ok(()) | Err(_)) = pace.send(delay);
                }
                Outcome::Quit => return Ok(()),
            },
            Ok(Message::Resized) => {}
            // While the table is paused, samples still show that the daemon runs.
            Ok(Message::Sample(Ok(_))) if view.is_paused => {}
            Ok(Message::Sample(Ok(sample))) => {
                interval = Some(Interval::between(&last, &sample));
                last = *sample;
            }
            Ok(Message::Sample(Err(error))) => {
                return Err(error.hint("has the daemon ended? its log says why"));
            }
            Ok(Message::Unreadable(error)) => return Err(no_terminal(error)),
            Ok(Message::Signal) => return Ok(()),
            Ok(Message::Panicked) | Err(_) => {
                return Err(Error::failed("a thread of ashlar top has panicked"));
            }
        }
    }
}
