//! Rules for all text: nothing specific to one machine, and documents with valid links.

use super::modules::join;
use super::{File, Finding, Tree};

/// Folders of the machines on which this was written.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/tmp/", "bash_jobs")];

/// Hosts of package registries: apt and cargo choose these.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("static.rust", "-lang.org"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("snapshot.", "debian.org"),
    concat!("py", "pi.org"),
    concat!("npm", "js.org"),
];

/// Written by tools, which add hosts themselves.
const GENERATED: &[&str] = &["Cargo.lock", "fuzz/Cargo.lock"];

/// No path of a machine and no host of a registry in any file.
pub(crate) fn machine(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !GENERATED.contains(&file.path.as_str())) {
        for (index, line) in file.text.lines().enumerate() {
            let paths = MACHINE_PATHS.iter().filter(|path| starts_path(line, path));
            let hosts = REGISTRY_HOSTS.iter().filter(|host| line.contains(**host));
            for what in paths.chain(hosts) {
                found.push(Finding::error(
                    &file.path,
                    index + 1,
                    format!("{what} is about one machine or registry"),
                ));
            }
        }
    }
    found
}

/// Whether `path` occurs in `line` as the beginning of a path, not as a part of one.
fn starts_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "._-}$".contains(c))
    })
}

/// Every document has a title, and its relative links lead to existing targets.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        if !file
            .text
            .lines()
            .find(|line| !line.trim().is_empty())
            .is_some_and(|line| line.starts_with("# "))
        {
            found.push(Finding::error(&file.path, 1, "does not open with a title (# ...)"));
        }
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in link_targets(&file.text) {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            if path.contains(':') || path.starts_with('/') {
                continue;
            }
            let there = if path.is_empty() { file.path.clone() } else { join(folder, path) };
            let inside = format!("{there}/");
            if !tree.paths.iter().any(|known| *known == there || known.starts_with(&inside)) {
                found.push(Finding::error(&file.path, line, format!("{target} leads nowhere")));
            } else if !anchor.is_empty()
                && tree.get(&there).is_some_and(|page| !has_heading(page, anchor))
            {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("{target}: there is no such heading"),
                ));
            }
        }
    }
    found
}

/// The targets of `[text](target)` outside of code: (line, target).
fn link_targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("    ") {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, _) in prose.match_indices("](") {
            let rest = &prose[at + 2..];
            let target =
                rest[..rest.find(')').unwrap_or(rest.len())].split(' ').next().unwrap_or_default();
            found.push((index + 1, target.to_owned()));
        }
    }
    found
}

/// Whether a heading of `page` has this anchor, by the rule of common renderers.
fn has_heading(page: &File, anchor: &str) -> bool {
    if !page.path.ends_with(".md") {
        return true;
    }
    page.text.lines().filter(|line| line.starts_with('#')).any(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>() == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let check = |text: &str| findings(machine, &[("scripts/a", text)]).len();
        for path in MACHINE_PATHS {
            assert_eq!(check(&format!("cd {path}x")), 1, "{path}");
            assert_eq!(check(&format!("\"{path}x\"")), 1, "{path}");
            assert_eq!(check(&format!("run{path}x")), 0, "{path} inside of another");
        }
    }

    #[test]
    fn registry_hosts_are_found_except_in_lock_files() {
        for host in REGISTRY_HOSTS {
            let text = format!("see https://{host}/x");
            assert_eq!(findings(machine, &[("README.md", &text)]).len(), 1, "{host}");
            assert_eq!(findings(machine, &[("Cargo.lock", &text)]).len(), 0, "{host}");
        }
    }

    #[test]
    fn a_document_without_a_title_is_found() {
        let check = |text| findings(links, &[("docs/a.md", text)]).len();
        assert_eq!(check("\n# Title\n"), 0);
        assert_eq!(check("## Not the title\n"), 1);
        assert_eq!(check(""), 1);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let other = ("docs/b.md", "# B\n## The road, taken\n");
        let check = |text: &str| findings(links, &[("docs/a.md", &format!("# A\n{text}")), other]);
        assert_eq!(
            check("[b](b.md) [up](../docs/b.md) [folder](../docs) [web](https://example.org/x)"),
            []
        );
        assert_eq!(check("[b](b.md#the-road-taken) [me](#a)"), []);
        assert_eq!(check("a [c](c.md)"), [(2, "c.md leads nowhere".to_owned())]);
        assert_eq!(check("[b](b.md#gone)").len(), 1);
        assert_eq!(check("[me](#gone)").len(), 1);
        assert_eq!(check("`[c](c.md)`\n```\n[c](c.md)\n```\n    [c](c.md)"), []);
    }
}
