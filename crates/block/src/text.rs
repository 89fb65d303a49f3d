//! Names from disks and clients, in lines of text.

/// `text` with its control characters escaped. Names come from disks: a newline must not look like another
/// line of the output, and an escape sequence must not control the terminal.
pub fn one_line(text: &str) -> String {
    let escape =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
