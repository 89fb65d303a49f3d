//! The page: the picture, and the numbers below it.

use std::fmt::Write;

use crate::Plot;
use crate::draw::escape;
use crate::latency::Latencies;
use crate::scale::{grouped, time};
use crate::side::QUANTILES;
use crate::trace::summary::{Amount, Totals};
use crate::{style, svg};

/// I/O that belongs to a file, or to something else that has a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileRow {
    /// The name.
    pub name: String,
    /// How often it was read or written.
    pub count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written or discarded.
    pub written_bytes: u64,
}

/// The page.
pub(crate) fn page(plot: &Plot, facts: &[(&str, String)], files: &[FileRow]) -> String {
    let picture = svg::picture(plot, facts);
    let totals = plot.summary.totals();
    let names: Vec<_> = totals.iter().map(|it| it.device.as_str()).collect();
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>I/O of {}</title>\n\
         <style>{}</style>\n</head>\n<body>\n{picture}",
        escape(&names.join(", ")),
        style::PAGE
    );
    sums(&mut out, &totals);
    latencies(&mut out, plot);
    if !files.is_empty() {
        let rows = files.iter().map(|row| {
            let cells = [row.read_bytes, row.written_bytes, row.count].map(grouped);
            (row.name.clone(), cells.to_vec())
        });
        let headings = ["file", "bytes read", "bytes written", "I/Os"];
        table(&mut out, "I/O by file", &headings, rows);
    }
    out + "</body>\n</html>\n"
}

/// A table with names in its first column.
fn table(
    out: &mut String,
    caption: &str,
    headings: &[&str],
    rows: impl Iterator<Item = (String, Vec<String>)>,
) {
    let mut put = |text: std::fmt::Arguments<'_>| out.write_fmt(text).unwrap_or_default();
    put(format_args!("<div class=\"wide\"><table>\n<caption>{caption}</caption>\n<thead><tr>"));
    for heading in headings {
        put(format_args!("<th scope=\"col\">{heading}</th>"));
    }
    put(format_args!("</tr></thead>\n<tbody>\n"));
    for (name, cells) in rows {
        put(format_args!("<tr><td class=\"name\">{}</td>", escape(&name)));
        for cell in cells {
            put(format_args!("<td>{cell}</td>"));
        }
        put(format_args!("</tr>\n"));
    }
    put(format_args!("</tbody>\n</table></div>\n"));
}

/// The sums of blkparse.
fn sums(out: &mut String, totals: &[Totals]) {
    let headings = [
        "device",
        "",
        "queued",
        "bytes",
        "dispatched",
        "bytes",
        "completed",
        "bytes",
        "merged",
        "bytes",
        "requeued",
        "depth",
        "lost",
    ];
    let rows = totals.iter().flat_map(|it| {
        let sides =
            [("reads", it.counts.read, it.read_depth), ("writes", it.counts.write, it.write_depth)];
        sides.map(|(kind, side, depth)| {
            let mut cells = vec![kind.to_owned()];
            for Amount { count, bytes, .. } in
                [side.queued, side.dispatched, side.completed, side.merged]
            {
                cells.extend([grouped(count), grouped(bytes)]);
            }
            cells.extend([side.requeued, depth.into(), it.lost].map(grouped));
            (format!("{} ({})", it.device, it.number), cells)
        })
    });
    table(out, "Sums: writes include discards and flushes", &headings, rows);
}

fn latencies(out: &mut String, plot: &Plot) {
    let headings = ["device", "", "I/Os", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let rows = plot.layers().into_iter().flat_map(|(_, device)| {
        let parts = &device.parts;
        let all = [("Q2C", &parts.q2c), ("Q2D", &parts.q2d), ("D2C", &parts.d2c)];
        let measured = all.into_iter().filter(|(_, it)| it.count() > 0);
        let row = |(kind, it): (&str, &Latencies)| {
            let mut cells = vec![kind.to_owned(), grouped(it.count())];
            cells.extend([it.min_ns().unwrap_or(0), it.mean_ns()].map(time));
            cells.extend(QUANTILES.map(|(_, thousandths)| time(it.quantile_ns(thousandths))));
            (device.name.clone(), cells)
        };
        measured.map(row).collect::<Vec<_>>()
    });
    table(out, "Latencies: Q queued, D sent to the driver, C completed", &headings, rows);
}
