"""How a report looks: quiet, light or dark as the reader's system is, and on paper."""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--text:#1c2024;--soft:#59616b;--line:#dde1e6;--lane:#cfd6de;
--bad:#b3261e;--bad-bg:#fdecea;--odd:#7a5200;--odd-bg:#fff4d6;--good:#17692f;--good-bg:#e6f4ea;--link:#0b57a4;--mark:#fff0b8}
@media (prefers-color-scheme:dark){:root{--bg:#15181c;--card:#1d2126;--text:#e4e7eb;--soft:#a0a9b4;--line:#333a42;
--lane:#46505b;--bad:#ff9a8f;--bad-bg:#3a1f1d;--odd:#f0c052;--odd-bg:#352a10;--good:#6fd08c;--good-bg:#16301f;
--link:#8ec2ff;--mark:#4a3f12}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue","Noto Sans","PingFang SC","Hiragino Sans GB","Microsoft YaHei","Noto Sans CJK SC","Source Han Sans SC",
sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:72rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:2rem}
footer{padding-top:2.5rem;padding-bottom:3rem;color:var(--soft);font-size:13px}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 .75rem}
h2{font-size:19px;line-height:1.3;margin:2.75rem 0 .9rem;padding-bottom:.35rem;border-bottom:1px solid var(--line)}
h3{font-size:15px;margin:1.5rem 0 .5rem}
p{margin:.5rem 0}
a{color:var(--link)}
code,pre,td.code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",
"Noto Sans Mono CJK SC",monospace;font-size:.87em}
.soft{color:var(--soft)}
.verdict{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--soft);border-radius:8px;
padding:1.1rem 1.4rem 1.2rem}
.verdict.bad{border-left-color:var(--bad)}
.verdict.odd{border-left-color:var(--odd)}
.verdict.good{border-left-color:var(--good)}
h2.headline{font-size:23px;line-height:1.3;font-weight:600;margin:0 0 .9rem;padding:0;border:0}
.headline .plain,.headline .faint{font-weight:400;color:var(--soft)}
.headline .culprit{color:var(--bad)}
dl{display:grid;grid-template-columns:minmax(6.5rem,max-content) 1fr;gap:.4rem 1.4rem;margin:0}
dt{color:var(--soft)}
dd{margin:0;min-width:0}
dd div+div{margin-top:.15rem}
dd.strong{font-weight:600}
dd code{background:var(--bg);border:1px solid var(--line);border-radius:4px;padding:.1em .4em}
nav{margin:1rem 0 0;display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;font-size:14px}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.facts{margin:0 0 1.25rem;font-size:14px;color:var(--soft);display:flex;flex-wrap:wrap;gap:.1rem 1.25rem}
.facts b{font-weight:600;color:var(--text)}
figure{margin:0 0 1rem}
figcaption{font-size:14px;margin-bottom:.3rem}
pre{margin:0;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.6rem 0;overflow-x:auto;
overflow-wrap:normal;line-height:1.5;tab-size:4}
pre span{display:block;padding:0 1rem;min-width:max-content}
pre span.at{background:var(--mark);font-weight:600}
pre i{font-style:normal;color:var(--soft);display:inline-block;min-width:4em;margin-right:1em;text-align:right;
-webkit-user-select:none;user-select:none}
.scroll{overflow-x:auto;margin:.25rem 0 .5rem}
table{border-collapse:collapse;font-size:14px;min-width:100%}
caption{text-align:left;color:var(--soft);padding-bottom:.35rem}
th,td{text-align:left;vertical-align:top;overflow-wrap:break-word;
padding:.32rem .9rem .32rem 0;border-bottom:1px solid var(--line)}
thead th{font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap;border-bottom-color:var(--soft)}
td.num,th.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.short{white-space:nowrap;overflow-wrap:normal}
td.long{min-width:14rem}
tr.culprit td:first-child{box-shadow:inset 3px 0 var(--bad)}
tr.culprit td{padding-left:0}
tr.culprit td:first-child{padding-left:.6rem;color:var(--bad);font-weight:600}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--link)}
ul{margin:.5rem 0;padding-left:1.2rem}
li{margin:.2rem 0}
.lane{display:grid;grid-template-columns:13rem 1fr;gap:0 1rem;align-items:center;border-bottom:1px solid var(--line)}
.lane.axis{border-bottom-color:var(--soft)}
.who{font-size:13.5px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;padding:.15rem 0}
.who small{color:var(--soft);font-size:12px;margin-left:.5em}
.lane.culprit .who{font-weight:600;color:var(--bad)}
.lane svg,.legend svg{display:block;overflow:visible}
.bar{fill:var(--lane)}
.grid{stroke:var(--line);stroke-width:1}
.zero{stroke:var(--bad);stroke-width:1;stroke-dasharray:3 3;opacity:.8}
.stop{stroke:var(--soft);stroke-width:2}
.tick{font-size:12px;fill:var(--soft);font-family:inherit}
.m{stroke-width:1.8;stroke:var(--bg)}
.m.root{fill:var(--bad)}
.m.failure{fill:var(--odd)}
.m.victim{fill:var(--bg);stroke:var(--odd)}
.m.ended{fill:var(--soft)}
.m.agent{fill:var(--bg);stroke:var(--soft)}
.m.earlier{fill:var(--bg);stroke:var(--bad)}
.m.restart{fill:none;stroke:var(--link);stroke-width:2.4}
.m.signal{fill:none;stroke:var(--bad);stroke-width:2.4}
.m.state{fill:var(--link)}
.m.event{fill:none;stroke:var(--text);stroke-width:1.8}
.span{stroke:var(--odd);stroke-width:2;opacity:.7}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.3rem;font-size:13px;color:var(--soft);margin:.6rem 0;padding:0;
list-style:none}
.legend li{display:flex;align-items:center;gap:.4rem;margin:0}
.chip{display:inline-block;border-radius:4px;padding:.05rem .5rem;font-weight:600;font-size:13px}
.chip.bad,td.bad{background:var(--bad-bg);color:var(--bad)}
.chip.odd,td.odd{background:var(--odd-bg);color:var(--odd)}
.chip.good{background:var(--good-bg);color:var(--good)}
.chip.none{background:var(--card);color:var(--soft)}
table.heat{width:auto;min-width:0;font-size:12px;border-collapse:separate;border-spacing:1px}
table.heat th,table.heat td{border:0;padding:.15rem .35rem;text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}
table.heat tbody th{font-weight:400;color:var(--text);position:sticky;left:0;background:var(--bg);text-align:left}
table.heat thead th{font-size:11px}
table.heat td{background:var(--card)}
table.heat td.ok{background:var(--good-bg)}
table.heat td.low{background:var(--odd-bg);color:var(--odd)}
table.heat td.worst{background:var(--bad-bg);color:var(--bad);font-weight:700}
table.heat td.own{background:none}
table.dense td{font-size:10px;padding:.1rem .12rem;min-width:1.5em}
table.dense thead th{font-size:9.5px;padding:.1rem .12rem}
table.dense tbody th{font-size:11px;padding:.1rem .3rem}
@media (max-width:40rem){
main,header,footer{padding-left:1rem;padding-right:1rem}
h2.headline{font-size:20px}
.verdict{padding:.9rem 1rem 1rem}
dl{grid-template-columns:1fr;gap:0}
dt{font-size:13px;margin-top:.6rem}
.lane{grid-template-columns:1fr}
.lane .who{padding-bottom:0}
.lane.axis .who:empty{display:none}
td.long{min-width:11rem}}
@media print{
body{font-size:10.5pt;background:#fff}
main,header,footer{max-width:none;padding:0}
nav,summary{display:none}
details::details-content{content-visibility:visible;block-size:auto}
figure,.verdict,.lane,tr{break-inside:avoid}
pre,.scroll{overflow:visible}
pre span{min-width:0;white-space:pre-wrap}}
"""


def policy() -> str:
    """Nothing may be loaded, run or sent; this style alone is allowed."""
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
