"""The look and the wording of the report page: a Jinja template that escapes every value, and its styles."""

STYLE = """
:root { color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5d6878; --line: #dfe3ea; --accent: #2563c9;
  --pale: #b9c7de; --good: #1a7f4e; --warn: #a15c00; --warn-ground: #fff4dc; --warn-line: #e8c98a; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #12161c; --card: #1a2029; --ink: #e6eaf1; --muted: #98a3b3; --line: #303947; --accent: #6ea3f7;
  --pale: #4b5c78; --good: #55c48d; --warn: #f0b75a; --warn-ground: #2d2414; --warn-line: #6b5424; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font-size: 16px; line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
header p { color: var(--muted); margin: 4px 0 0; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 40px 0 12px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 0 0 8px; }
.banner { background: var(--warn-ground); border: 1px solid var(--warn-line); border-radius: 10px;
  padding: 12px 16px; margin: 20px 0 0; }
.banner strong { color: var(--warn); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px;
  margin: 16px 0; min-width: 0; }
.headline { font-size: 1.12rem; margin: 0; max-width: 52em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px;
  margin: 20px 0 0; }
.tile { border-left: 3px solid var(--line); padding: 2px 0 2px 12px; }
.tile.main { border-color: var(--accent); }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { display: block; color: var(--muted); font-size: 0.86rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr));
  gap: 0 28px; align-items: start; }
.columns > .card { height: calc(100% - 32px); }
.figure svg { display: block; width: 100%; height: auto; margin: 0 auto; }
.figure.square svg { max-width: 430px; }
svg text { font-family: inherit !important; }
.checks { list-style: none; margin: 0; padding: 0; }
.checks li { padding: 10px 0; border-top: 1px solid var(--line); }
.checks li:first-child { border-top: 0; padding-top: 0; }
.checks strong { display: block; }
.mark { font-weight: 600; font-size: 0.8rem; border: 1px solid currentColor; border-radius: 999px;
  padding: 1px 9px; margin-left: 8px; white-space: nowrap; }
.mark.good { color: var(--good); }
.mark.warn { color: var(--warn); }
.mark.none { color: var(--muted); }
.note, .checks li > span { color: var(--muted); font-size: 0.9rem; }
.note { margin: 10px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
tbody:last-child tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; color: var(--muted); white-space: nowrap; }
tbody th { color: var(--ink); font-weight: 500; white-space: normal; overflow-wrap: anywhere;
  min-width: 9em; }
tbody th.group { color: var(--accent); font-weight: 600; padding-top: 14px; }
td.number, th.number { text-align: right; white-space: nowrap; }
td small, p small { color: var(--muted); margin-left: 6px; }
.wide td { overflow-wrap: anywhere; }
.meter { display: inline-block; width: 90px; height: 8px; border-radius: 4px; background: var(--line);
  overflow: hidden; margin-right: 10px; vertical-align: middle; }
.meter i { display: block; height: 100%; background: var(--accent); }
code { font-size: 0.86em; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details[open] summary { margin-bottom: 10px; }
"""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Agreement with people: {{ report.judge }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
{% macro interval(s) %}
{% if s.low is not none %}{{ s.low | two }} to {{ s.high | two }}{% endif %}
{% endmacro %}
{% macro statistic(s) %}
{% if s.value is none %}undefined<small>{{ s.reason }}</small>
{% else %}{{ s.value | two }}<small>{{ interval(s) or s.reason or "" }}</small>
{% endif %}
{% endmacro %}
<header>
<h1>How well does {{ report.judge }} agree with people?</h1>
<p>{{ report.dataset.name }}, {{ scored }}</p>
</header>
{% if report.dataset.synthetic %}
<p class="banner"><strong>Synthetic data.</strong> The ratings come from a simulated panel, not from people.
The numbers show that the pipeline works; they say nothing about agreement with human listeners.</p>
{% endif %}
{% for d in dimensions %}
<section>
<h2>{{ d.name }}</h2>
<div class="card">
<p class="headline">{{ d.headline }}</p>
<div class="tiles">
<div class="tile main"><b>{{ d.report.spearman.value | two }}</b>
<span>Spearman, item by item<br>{{ interval(d.report.spearman) }}</span></div>
<div class="tile"><b>{{ d.report.ceiling.panel_mean.value | two }}</b>
<span>best possible here<br>{{ interval(d.report.ceiling.panel_mean) }}</span></div>
<div class="tile"><b>{{ d.report.share_of_panel_ceiling.value | percent }}</b>
<span>of the best possible<br>
{% if d.report.share_of_panel_ceiling.low is not none %}{{ d.report.share_of_panel_ceiling.low | percent }} to
{{ d.report.share_of_panel_ceiling.high | percent }}{% endif %}</span></div>
<div class="tile"><b>{{ d.report.ceiling.spearman.value | two }}</b>
<span>one rater and the others<br>{{ interval(d.report.ceiling.spearman) }}</span></div>
<div class="tile"><b>{{ d.report.n_items }}</b>
<span>items in {{ d.report.n_groups }} groups,<br>{{ d.report.n_raters }} raters,
{{ d.report.n_ratings }} ratings</span></div>
</div>
{% for warning in d.warnings %}
<p class="note"><strong>Note.</strong> {{ warning }}</p>
{% endfor %}
</div>
{% if d.checks %}
<div class="columns">
<div class="card"><h3>Does it listen?</h3><div class="figure">{{ d.bars }}</div>
<p class="note">Bars: Spearman with the same human scores when something is taken away from the judge's input.
Dark lines: 95 % intervals. Dashed: what people reach. A missing context may be something the judge has never
met; a swapped one is as real as its own, so that check weighs more.</p></div>
<div class="card"><ul class="checks">
{% for check in d.checks %}
<li><strong>{{ check.title }}<span class="mark {{ check.tone }}">{{ check.mark }}</span></strong>
<span>{{ check.text }}</span></li>
{% endfor %}
</ul></div>
</div>
{% endif %}
{% if d.scatter %}
<div class="columns">
<div class="card"><h3>Every item</h3><div class="figure square">{{ d.scatter }}</div>
<p class="note">One point per item. On the dashed line judge and people give the same score.</p></div>
<div class="card"><h3>What a score means</h3><div class="figure square">{{ d.calibration }}</div>
<p class="note">Items in bins by judge score: where people stand, on average, when the judge gives this score.
Bars: 95 % intervals of the mean.</p></div>
</div>
{% endif %}
<div class="card"><h3>Judge and ceilings</h3><div class="scroll"><table>
<thead><tr><th>measure</th><th>value</th><th>what it says</th></tr></thead>
{% for who, rows in d.measures.items() %}
<tbody><tr><th colspan="3" class="group">{{ who }}</th></tr>
{% for name, value, meaning in rows %}
<tr><th scope="row">{{ name }}</th><td>{{ statistic(value) }}</td><td>{{ meaning }}</td></tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div>
<p class="note">Scores: judge {{ d.report.judge.mean | two }} (standard deviation
{{ d.report.judge.sd | two }}), people {{ d.report.human.mean | two }} ({{ d.report.human.sd | two }}) on
a scale from {{ d.report.scale.minimum | plain }} to {{ d.report.scale.maximum | plain }}. Intervals: 95 %
cluster bootstrap, {{ report.resamples }} draws of whole groups.</p></div>
{% if d.slices %}
<div class="card"><h3>By slice</h3><div class="scroll"><table>
<thead><tr><th>slice</th><th>Spearman</th><th class="number">mean error</th><th class="number">bias</th>
<th class="number">items</th><th class="number">groups</th></tr></thead><tbody>
{% for row in d.slices %}
<tr><th scope="row">{{ row.column }}: {{ row.value }}</th>
<td><span class="meter"><i style="width: {{ row.width }}%"></i></span>
{{ statistic(row.report.spearman) }}</td>
<td class="number">{{ row.report.mae.value | two }}</td>
<td class="number">{{ row.report.bias.value | signed }}</td>
<td class="number">{{ row.report.n_items }}</td><td class="number">{{ row.report.n_groups }}</td></tr>
{% endfor %}
</tbody></table></div></div>
{% endif %}
{% if d.systems | length >= 2 %}
<div class="card"><h3>System by system</h3>
<p class="note">A different question: does the judge rank systems as people do? Means of systems agree more
than items do, and there are only {{ d.systems | length }} of them.</p>
<div class="scroll"><table>
<thead><tr><th>system</th><th class="number">people</th><th class="number">judge</th>
<th class="number">items</th></tr></thead><tbody>
{% for row in d.systems %}
<tr><th scope="row">{{ row.system_id }}</th><td class="number">{{ row.human | two }}</td>
<td class="number">{{ row.judge | two }}</td><td class="number">{{ row.n_items }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">System-level Spearman: {{ statistic(d.report.system_level.spearman) | trim }};
Pearson: {{ statistic(d.report.system_level.pearson) | trim }}</p></div>
{% endif %}
{% if d.worst %}
<div class="card"><h3>Largest disagreements</h3><div class="scroll"><table class="wide">
<thead><tr><th>pair</th><th>group</th><th>system</th><th class="number">people</th>
<th class="number">raters</th><th class="number">judge</th><th class="number">difference</th></tr></thead>
<tbody>
{% for row in d.worst %}
<tr><th scope="row">{{ row.pair_id }}</th><td>{{ row.group_id }}</td><td>{{ row.system_id or "" }}</td>
<td class="number">{{ row.human_mean | two }}</td><td class="number">{{ row.n_raters }}</td>
<td class="number">{{ row.score | two }}</td>
<td class="number">{{ (row.score - row.human_mean) | signed }}</td></tr>
{% endfor %}
</tbody></table></div></div>
{% endif %}
<details class="card"><summary>The {{ d.report.n_raters }} raters, one by one</summary>
<div class="scroll"><table>
<thead><tr><th>rater</th><th>Spearman with the mean of the others</th><th class="number">items</th></tr>
</thead><tbody>
{% for rater in d.report.ceiling.raters %}
<tr><th scope="row">{{ rater.rater_id }}</th>
<td>{% if rater.spearman is none %}undefined<small>{{ rater.reason }}</small>
{% else %}{{ rater.spearman | two }}{% endif %}</td><td class="number">{{ rater.n }}</td></tr>
{% endfor %}
</tbody></table></div></details>
</section>
{% endfor %}
<h2>Where these numbers come from</h2>
<div class="card"><div class="scroll"><table class="wide"><tbody>
{% for name, value in provenance %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">All numbers are in <code>agreement.json</code>, every item with its scores in
<code>items.csv</code>, both beside this page.</p></div>
</main>
</body>
</html>
"""
