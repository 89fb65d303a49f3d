//! Numbers as short texts.

use crate::rates::Latency;

/// Events in each second.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        x if x < 9.95 => format!("{x:.1}"),
        x if x < 9999.5 => format!("{x:.0}"),
        x if x < 999_950.0 => format!("{:.1}k", x / 1e3),
        x => format!("{:.1}M", x / 1e6),
    }
}

/// Bytes, in units of a million.
pub(crate) fn megabytes(bytes: f64) -> String {
    match bytes / 1e6 {
        0.0 => "0".to_owned(),
        x if x < 99.95 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// A time; `>` if it took longer than that.
pub(crate) fn latency(latency: Option<Latency>) -> String {
    let Some(Latency { us, is_over }) = latency else {
        return "-".to_owned();
    };
    let sign = if is_over { ">" } else { "" };
    match us {
        us if us < 999.5 => format!("{sign}{us:.0}us"),
        us if us < 99_950.0 => format!("{sign}{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{sign}{:.0}ms", us / 1e3),
        us => format!("{sign}{:.1}s", us / 1e6),
    }
}

/// A share in percent.
pub(crate) fn percent(percent: f64) -> String {
    format!("{percent:.0}%")
}

/// A bar of `width` characters, with the share at its end, as htop's.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let inside = width.saturating_sub(2);
    // 100 % is said only of what is done.
    let text = format!("{:.1}%", (share * 1000.0).floor() / 10.0);
    let filled = (share.clamp(0.0, 1.0) * inside as f64) as usize;
    let free = inside.saturating_sub(text.len());
    let bars = "|".repeat(filled.min(free));
    format!("[{bars:<free$}{text}]")
}
