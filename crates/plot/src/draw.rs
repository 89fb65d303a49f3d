//! The elements of SVG that are used.

use std::fmt::Write;

/// Text for XML and HTML: the characters of markup are escaped, those that XML does not have are replaced.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// A coordinate with one digit behind the point, if it needs one.
pub(crate) fn at(value: f64) -> String {
    let tenths = (value * 10.0).round() as i64;
    match (tenths / 10, (tenths % 10).abs()) {
        (whole, 0) => whole.to_string(),
        (0, rest) if tenths < 0 => format!("-0.{rest}"),
        (whole, rest) => format!("{whole}.{rest}"),
    }
}

/// Elements, one after the other.
#[derive(Default)]
pub(crate) struct Canvas {
    pub(crate) out: String,
}

impl Canvas {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.out.write_fmt(text).unwrap_or_default();
    }

    /// Text, which is escaped.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let (x, y, text) = (at(x), at(y), escape(text));
        self.put(format_args!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>\n"));
    }

    /// A path; nothing if it is empty.
    pub(crate) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.put(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
        }
    }

    /// Opens a group that has a name.
    pub(crate) fn open(&mut self, label: &str) {
        let label = escape(label);
        self.put(format_args!("<g role=\"group\" aria-label=\"{label}\">\n"));
    }

    /// Opens a group with units of its own: each mark is drawn as a line of its middle, half a unit up.
    pub(crate) fn scale(&mut self, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let (x, y) = (at(x), at(y + height / 2.0));
        self.put(format_args!(
            "<g transform=\"translate({x} {y}) scale({width:.4} {height:.4})\">\n"
        ));
    }

    pub(crate) fn close(&mut self) {
        self.out += "</g>\n";
    }
}

/// A line that goes up and down in steps, with gaps.
#[derive(Default)]
pub(crate) struct Steps {
    path: String,
    last: Option<(String, String)>,
}

impl Steps {
    /// From `left` to `right` at height `y`.
    pub(crate) fn add(&mut self, left: f64, right: f64, y: f64) {
        let (left, right, y) = (at(left), at(right), at(y));
        match &self.last {
            Some((end, height)) if *end == left => {
                if *height != y {
                    self.path += &format!("H{left}V{y}");
                }
            }
            Some(_) | None => {
                self.finish_line();
                self.path += &format!("M{left} {y}");
            }
        }
        self.last = Some((right, y));
    }

    fn finish_line(&mut self) {
        if let Some((end, _)) = self.last.take() {
            self.path += &format!("H{end}");
        }
    }

    pub(crate) fn path(mut self) -> String {
        self.finish_line();
        self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_element() {
        assert_eq!(
            escape("<a href='&\">\u{1b}\u{0}"),
            "&lt;a href=&#39;&amp;&quot;&gt;\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([0.0, 1.0, 1.26, -0.34, -2.0].map(at), ["0", "1", "1.3", "-0.3", "-2"]);
    }

    #[test]
    fn equal_steps_are_one_line_and_gaps_are_gaps() {
        let mut steps = Steps::default();
        for (left, right, y) in [(0.0, 1.0, 5.0), (1.0, 2.0, 5.0), (2.0, 3.0, 4.0), (6.0, 7.0, 4.0)]
        {
            steps.add(left, right, y);
        }
        assert_eq!(steps.path(), "M0 5H2V4H3M6 4H7");
    }
}
