"""The look of a report's page: fonts the reader has, colours that follow light and dark."""

from attnlab.reports.vector import DARK, FONTS, LIGHT

CSS = """
:root {
  color-scheme: light dark;
  --page: #fdfdfc; --ink: LIGHT; --soft: #5b636d; --line: #dfe2e6;
  --box: #f3f5f7; --answer: #eaf2f8; --accent: #0072b2; --shade: rgb(20 30 40 / 0.28);
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --ink: DARK; --soft: #a0a8b2; --line: #343a42;
    --box: #1d2126; --answer: #172733; --accent: #58aee0; --shade: rgb(150 180 210 / 0.38);
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1.0625rem/1.65 FONTS;
  overflow-wrap: break-word;
}
main { max-width: 78rem; margin: 0 auto; padding: clamp(1.5rem, 6vw, 4.5rem) 1.1rem 4rem; }
/* lines that are easy to read; tables and figures take the room there is */
header, section > p, .note, pre, .origin { max-width: 46rem; }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; font-weight: 650; }
h1 { font-size: clamp(1.6rem, 5vw, 2.3rem); letter-spacing: -0.018em; margin: 0 0 0.9rem; }
h2 { font-size: 1.35rem; letter-spacing: -0.01em; margin: 0 0 0.7rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0.5rem; }
p { margin: 0 0 1rem; text-wrap: pretty; }
section { margin-top: 3rem; }
.question { font-size: 1.15rem; color: var(--soft); margin-bottom: 1.4rem; }
.answer {
  background: var(--answer); border-left: 4px solid var(--accent); border-radius: 0 8px 8px 0;
  padding: 1rem 1.25rem; font-size: 1.2rem; line-height: 1.5;
}
.answer p { margin: 0; }
.answer p + p { margin-top: 0.6rem; }
.label {
  display: block; font-size: 0.8rem; font-weight: 650; letter-spacing: 0.06em;
  text-transform: uppercase; color: var(--accent); margin-bottom: 0.25rem;
}
figure, .table, .figures { margin: 1.9rem 0; }
figcaption, caption { font-size: 1.0625rem; font-weight: 600; line-height: 1.4; text-align: left; }
figcaption { margin-bottom: 0.6rem; }
caption { padding-bottom: 0.5rem; }
.note { font-size: 0.9rem; line-height: 1.5; color: var(--soft); margin: 0.6rem 0 0; }
svg { display: block; width: 100%; max-width: 38rem; height: auto; }
.figures {
  display: grid; gap: 1.9rem 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 32rem), 1fr));
}
.figures figure { min-width: 0; margin: 0; }
.missing {
  color: var(--soft); border: 1px dashed var(--line); border-radius: 8px; padding: 0.9rem 1.1rem;
}
.files { font-size: 0.85rem; margin: 0.5rem 0 0; display: flex; flex-wrap: wrap; gap: 0.4rem; }
.files a {
  padding: 0.1rem 0.6rem; border: 1px solid var(--line); border-radius: 6px;
  color: var(--accent); text-decoration: none;
}
.files a:hover { border-color: var(--accent); text-decoration: underline; }
a { color: var(--accent); }
/* where more is to be seen, the edge is shaded: the shades stay, what covers them scrolls */
.scroll {
  overflow-x: auto; width: fit-content; max-width: 100%;
  background:
    linear-gradient(to right, var(--page) 40%, transparent) left / 3rem 100% local,
    linear-gradient(to left, var(--page) 40%, transparent) right / 3rem 100% local,
    linear-gradient(to right, var(--shade), transparent) left / 1rem 100% scroll,
    linear-gradient(to left, var(--shade), transparent) right / 1rem 100% scroll;
  background-repeat: no-repeat;
}
/* a bar that is always seen */
.scroll::-webkit-scrollbar, pre::-webkit-scrollbar { height: 0.6rem; }
.scroll::-webkit-scrollbar-track, pre::-webkit-scrollbar-track { background: var(--box); }
.scroll::-webkit-scrollbar-thumb, pre::-webkit-scrollbar-thumb {
  background: var(--soft); border-radius: 0.3rem;
}
table {
  border-collapse: separate; border-spacing: 0; min-width: min(100%, 26rem);
  font-size: 0.95rem; line-height: 1.375rem; font-variant-numeric: tabular-nums;
}
th, td {
  padding: 0.5rem 1.1rem 0.5rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: normal;
}
th:last-child, td:last-child { padding-right: 0.4rem; }
/* which row it is stays in sight */
th:first-child { position: sticky; left: 0; background: var(--page); }
thead th {
  font-weight: 600; color: var(--soft); vertical-align: bottom; border-bottom-color: var(--soft);
}
tbody th { font-weight: 500; }
thead th { min-width: 4rem; max-width: 11rem; }
td, tbody th { max-width: 26rem; }
.long { min-width: 13rem; overflow-wrap: anywhere; }
.number { text-align: right; }
td.number, td.short, tbody th.short { white-space: nowrap; }
pre {
  margin: 0; padding: 0.9rem 1.1rem; background: var(--box); border-radius: 8px; overflow-x: auto;
  font: 0.875rem/1.55 ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas,
    "Noto Sans Mono", "Liberation Mono", monospace;
  tab-size: 4;
}
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
.origin { border-top: 1px solid var(--line); padding-top: 2rem; font-size: 0.95rem; }
.origin pre + p { margin-top: 0.7rem; color: var(--soft); }
.versions { margin: 0; display: flex; flex-wrap: wrap; gap: 0.2rem 1.6rem; }
.versions div { display: flex; gap: 0.5rem; }
dt { color: var(--soft); }
dd { margin: 0; font-variant-numeric: tabular-nums; }
details { margin-top: 1.6rem; }
.runs { margin: 0; padding-left: 1.2rem; columns: 15rem; }
summary { cursor: pointer; font-weight: 600; margin-bottom: 0.5rem; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
@media screen and (max-width: 64rem) {
  td.short { white-space: normal; }
}
@media screen and (max-width: 30rem) {
  svg { width: calc(100% + 0.8rem); margin-right: -0.8rem; }
  tbody th { max-width: 9rem; overflow-wrap: break-word; }
  tbody th.short { white-space: normal; }
  .long { min-width: 10rem; }
}
@media print {
  @page { margin: 18mm; }
  html { font-size: 9.5pt; }
  body { background: none; }
  svg { max-width: 34rem; margin: 0; }
  main { max-width: none; padding: 0; }
  section { margin-top: 1.8rem; }
  h2, h3, figcaption, caption { break-after: avoid; }
  figure, tr, .answer { break-inside: avoid; }
  .scroll, pre { overflow: visible; }
  .scroll { background: none; width: auto; max-width: none; }
  table { font-size: 8pt; line-height: 1.4; min-width: 0; max-width: 100%; }
  th, td { padding: 0.35rem 0.7rem 0.35rem 0; }
  thead th { min-width: 0; }
  th:first-child { position: static; background: none; }
  td.short, tbody th.short { white-space: normal; }
  th, td, .long { min-width: 0; }
  .many th, .many td { overflow-wrap: anywhere; font-size: 7pt; }
  .figures { display: block; }
  .figures figure { margin: 1.6rem 0; }
  .files, .beside { display: none; }
  header, section > p, .note, pre, .origin { max-width: none; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .answer, pre { print-color-adjust: exact; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
for name, value in (("LIGHT", LIGHT), ("DARK", DARK), ("FONTS", FONTS)):
    CSS = CSS.replace(name, value)

# of a section in a page of somebody else's: nothing outside of it changes, and colours are those of
# the text around it, so that it can be read on a light page and on a dark one
_RULES = {
    "": "max-width: 78rem; overflow-wrap: break-word",
    "h4": "margin: 0.4rem 0; font-size: 1.05em",
    "p": "margin: 0.4rem 0; max-width: 46rem",
    ".note": "opacity: 0.7; font-size: 0.9em",
    ".figures": "display: flex; flex-wrap: wrap; gap: 0.8rem 2rem",
    ".heads": "display: flex; flex-wrap: wrap; gap: 0.4rem 1.2rem; font-size: 0.85em",
    ".figures figure": "flex: 1 1 24rem; max-width: 38rem; min-width: 0",
    "figure": "margin: 0.6rem 0",
    "figcaption": "font-weight: 600",
    "caption": "caption-side: top; font-weight: 600; text-align: left; color: inherit",
    "svg": "display: block; max-width: 100%; height: auto; color: inherit",
    ".scroll": "overflow-x: auto; max-width: 100%",
    "table": "color: inherit; border-collapse: collapse; font-variant-numeric: tabular-nums",
    "th, td": "padding: 0.15rem 0.9rem 0.15rem 0; text-align: left; vertical-align: top",
    "th.number, td.number": "text-align: right",
    "pre": "white-space: pre-wrap; overflow-wrap: anywhere; background: none; color: inherit",
}
INLINE = " ".join(
    ", ".join(f".attnlab-result {part}".strip() for part in parts.split(", ")) + f" {{ {look} }}"
    for parts, look in _RULES.items()
)
