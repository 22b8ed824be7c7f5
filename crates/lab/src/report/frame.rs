//! What the pages of the lab have in common: the look, and tables.

use std::fmt::Write as _;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1d2430;--soft:#667084;--rule:#d9dee7;--paper:#fff;--card:#f6f8fb}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--soft:#98a2b8;--rule:#333c4d;--paper:#12161e;--card:#191f2a}}
body{margin:0 auto;max-width:70rem;padding:1.5rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1rem;margin:0}p{margin:.25rem 0;color:var(--soft)}
code{font-size:.85em;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;margin:1.5rem 0}
figure{margin:0;padding:1rem;background:var(--card);border-radius:.6rem}
svg{display:block;width:100%;height:auto;overflow:visible}
text{fill:var(--soft);font-size:12px}text.name{fill:var(--ink)}
.rule{stroke:var(--rule);stroke-width:1}.most{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:4 3}
.series path{fill:none;stroke-width:2}svg:has(.series:hover) .series:not(:hover){opacity:.15}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;white-space:nowrap}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--rule)}
th{position:sticky;top:0;background:var(--paper)}
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}
";

/// The beginning of a page, up to where its first heading stands.
pub(crate) fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style>",
        escaped(title)
    )
}

/// A table whose first line is its heads.
pub(crate) fn table(lines: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=scroll><table>");
    for (place, line) in lines.iter().enumerate() {
        let tag = if place == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for cell in line {
            // A string takes all that is written.
            let _ = write!(html, "<{tag}>{}", escaped(cell));
        }
    }
    html.push_str("</table></div>");
    html
}

/// Text that stands for itself, in elements and in quoted attributes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}
