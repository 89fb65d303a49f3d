//! The keys: those of htop where htop has a similar command.

use crossterm::event::KeyCode::{self, Char, Down, End, Esc, F, Home, PageDown, PageUp, Up};

/// What a key does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Help,
    Search,
    Filter,
    Tree,
    SortNext,
    SortPrevious,
    Invert,
    Slower,
    Faster,
    Delay,
    Pause,
    Idle,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Leave,
    Quit,
}

/// A command, its keys, and their line in the help.
pub(crate) struct Binding {
    command: Command,
    keys: &'static [KeyCode],
    pub(crate) names: &'static str,
    /// Empty if the help of the command before covers this one, too.
    pub(crate) help: &'static str,
    /// The word in the last line, with the function key before it.
    pub(crate) label: &'static str,
}

const fn binding(
    command: Command,
    keys: &'static [KeyCode],
    names: &'static str,
    help: &'static str,
    label: &'static str,
) -> Binding {
    Binding { command, keys, names, help, label }
}

/// All keys.
pub(crate) const BINDINGS: [Binding; 20] = [
    // First, so that its label fits in any terminal.
    binding(Command::Quit, &[F(10), Char('q')], "F10 q", "quit, as Ctrl-C", "F10 Quit"),
    binding(Command::Help, &[F(1), Char('h'), Char('?')], "F1 h", "this help", "F1 Help"),
    binding(
        Command::Search,
        &[F(3), Char('/')],
        "F3 /",
        "select a device by a part of its name; F3 again: the next one",
        "F3 Search",
    ),
    binding(
        Command::Filter,
        &[F(4), Char('\\')],
        "F4 \\",
        "show only devices with a text in name, kind or use; Esc ends it",
        "F4 Filter",
    ),
    binding(
        Command::Tree,
        &[F(5), Char('t')],
        "F5 t",
        "devices below those that are made of them",
        "F5 Tree",
    ),
    binding(
        Command::SortNext,
        &[F(6), Char('>'), Char('.')],
        "F6 > <",
        "sort by the next column, and by the one before",
        "F6 Sort",
    ),
    binding(Command::SortPrevious, &[Char('<'), Char(',')], "", "", ""),
    binding(Command::Invert, &[Char('I')], "I", "invert the order", "I Invert"),
    binding(
        Command::Slower,
        &[Char('+'), F(8)],
        "+ -",
        "a longer and a shorter time between samples",
        "",
    ),
    binding(Command::Faster, &[Char('-'), F(7)], "", "", ""),
    binding(Command::Delay, &[Char('d')], "d", "type the time between samples, in seconds", ""),
    binding(Command::Pause, &[Char(' ')], "space", "hold the table", ""),
    binding(Command::Idle, &[Char('0')], "0", "hide devices that do nothing", "0 Idle"),
    binding(Command::Up, &[Up, Char('k')], "up down", "select the device above, and below", ""),
    binding(Command::Down, &[Down, Char('j')], "", "", ""),
    binding(Command::PageUp, &[PageUp], "PgUp PgDn", "a page up, and down", ""),
    binding(Command::PageDown, &[PageDown], "", "", ""),
    binding(Command::Home, &[Home], "Home End", "the first device, and the last one", ""),
    binding(Command::End, &[End], "", "", ""),
    binding(Command::Leave, &[Esc], "Esc", "leave the help; end the filter", ""),
];

/// What a key does, if anything.
pub(crate) fn command(code: KeyCode) -> Option<Command> {
    let found = BINDINGS.iter().find(|binding| binding.keys.contains(&code));
    found.map(|binding| binding.command)
}
