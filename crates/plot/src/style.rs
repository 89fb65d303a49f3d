//! The colours, for light and dark, and the text of both files.

/// The style of the picture. The colours of kinds can be distinguished with all common kinds of
/// colour blindness; where lines share a chart, their strokes differ too. Without variables, which
/// librsvg does not know.
pub(crate) const PICTURE: &str = "\
svg{color-scheme:light dark}\
text{font:13px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2328}\
.h{font-size:19px;font-weight:600}.b{font-size:16px;font-weight:600}.d{fill:#59636e}\
.n{font-variant-numeric:tabular-nums}.e{text-anchor:end}.m{text-anchor:middle}\
.paper{fill:#fff}.grid{stroke:#d8dee4;fill:none}\
.l{fill:none;stroke-width:1.5;stroke-linejoin:round}\
.read{stroke:#0969da}.write{stroke:#bc4c00}.discard{stroke:#1a7f37}\
.merge{stroke:#59636e;stroke-dasharray:3 2}.late{stroke:#6639ba}\
.c{font:12px ui-monospace,'DejaVu Sans Mono',monospace}.branch{stroke:#59636e;fill:none}\
.h1{stroke-opacity:.3}.h2{stroke-opacity:.5}.h3{stroke-opacity:.75}.swatch{fill:none;stroke-width:10}\
.q2d{stroke-dasharray:1 3;stroke-linecap:round}.d2c{stroke-dasharray:5 2}\
.mark{fill:none;stroke-width:1}\
.flush{stroke:#a21caf;stroke-width:1.5;fill:none}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9198a1}.paper{fill:#0d1117}\
.grid{stroke:#30363d}.read{stroke:#58a6ff}.write{stroke:#f0883e}.discard{stroke:#3fb950}\
.merge,.branch{stroke:#9198a1}.late{stroke:#b794f6}.flush{stroke:#e275f0}}";

/// The style of the page around it.
pub(crate) const PAGE: &str = "\
:root{color-scheme:light dark}\
body{margin:1.5rem auto;max-width:66rem;padding:0 1rem;font:15px/1.45 system-ui,'Segoe UI','DejaVu Sans',sans-serif;\
background:#fff;color:#1f2328}\
svg{max-width:100%;height:auto}\
.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:.4rem 0 1.6rem}\
caption{text-align:left;font-weight:600;padding:.3rem 0}\
th,td{padding:.25rem .45rem;text-align:right;border-bottom:1px solid #d8dee4;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}\
td.name{white-space:normal;min-width:6rem;max-width:36rem;overflow-wrap:anywhere}\
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}}";
