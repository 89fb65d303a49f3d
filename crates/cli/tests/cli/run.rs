//! Runs of a program to its end; the tests of `ashlar-bench` use this file, too.

use std::process::Command;

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end. It must not panic.
pub(crate) fn run(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let run = Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(run.code.is_some() && !run.err.contains("panicked"), "{command:?}: {run:?}");
    run
}

impl Run {
    /// Asserts that it succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts that it failed with this code and one error line that contains all of `parts`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines: Vec<&str> = self.err.lines().collect();
        let is_ours =
            |line: &&&str| line.starts_with("ashlar: ") || line.starts_with("ashlar-bench: ");
        let ours = lines.iter().filter(is_ours).count();
        assert_eq!(ours, 1, "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:?}");
        }
        self
    }
}
