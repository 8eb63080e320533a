"""The style sheet of a page: light and dark as the reader has it, light on paper."""

from retune.tasks.report.svg import DARK, LIGHT

STYLE = (
    f":root{{{LIGHT};color-scheme:light dark}}"
    f"@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1040px;padding:16px;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2em 0}
h2{font-size:1.15rem;margin:2em 0 .5em;border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{font-size:.85rem;font-weight:600;margin:0 0 .2em}
p{margin:.4em 0;max-width:75ch}
.note{color:var(--muted);font-size:.87rem}
.bad{color:var(--bad);font-weight:600}
.banner{border:2px solid var(--c5);border-radius:6px;padding:8px 12px;max-width:none;font-weight:600}
.beside{display:grid;grid-template-columns:minmax(0,8fr) minmax(0,5fr);gap:24px;align-items:center}
@media (max-width:760px){.beside{grid-template-columns:minmax(0,1fr)}}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,150px),1fr));gap:12px;margin:1em 0}
.figures div{border:1px solid var(--line);border-radius:6px;padding:8px 12px}
.figures b{display:block;font-size:1.35rem}
.figures span{color:var(--muted);font-size:.82rem}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,280px),1fr));gap:18px}
figure{margin:0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font-family:inherit}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;white-space:nowrap}
td.w{min-width:9em}
pre{white-space:pre-wrap;font-size:.8rem;margin:.3em 0}
nav a{color:inherit;margin-right:1em;font-size:.87rem}
summary{cursor:pointer}
@media print{"""
    f":root{{{LIGHT};color-scheme:light}}"
    """
body{max-width:none;font-size:11px}
nav{display:none}
figure,section.keep,.panels>div,tr{break-inside:avoid}
.panels{grid-template-columns:repeat(3,1fr)}
.wide{overflow:visible}
}
"""
)
