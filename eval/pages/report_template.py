"""The wording of the agreement report: a template for `page.render`, and the styles that only it needs."""

from .sound_pieces import STYLES as SOUND_STYLES

STYLES = (
    SOUND_STYLES
    + """
.expects { color: var(--muted); font-size: 0.9rem; margin: 2px 0 12px; }
h4.expects-title { margin-top: 22px; }
.grouped > h4.expects-title:first-of-type { margin-top: 0; }
.grouped .checks { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 0 28px; }
.grouped .checks li, .grouped .checks li:first-child { border-top: 1px solid var(--line); padding: 10px 0; }
.checks .means { display: block; font-size: 0.86rem; margin-top: 4px; }
.figure.dots svg { max-width: 600px; margin: 0; }
.banner + .card { margin-top: 20px; }
h2 + .card > p:first-child { margin-top: 0; }
.card > p:last-child { margin-bottom: 0; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); }
.measures td small:not(.why) { white-space: nowrap; }
.measures td + td { min-width: 14em; }
.card > details { margin-top: 12px; }
@media (max-width: 600px) { .card { padding: 14px; } main { padding: 20px 12px 48px; } }
@media print { audio, nav { display: none; } .card, tr, .clip { break-inside: avoid; } .scroll { overflow: visible; } }
"""
)

TEMPLATE = """{% extends "frame" %}
{% from "pieces" import interval, statistic %}
{% from "sound" import before, answer %}
{% block title %}Agreement with people: {{ report.judge }}{% endblock %}
{% macro disagreement(row, n) %}
<article class="card judged">
<h4>{{ n }}. {{ row.pair_id }}</h4>
<p class="note">judge {{ row.score | two }}, people {{ row.human_mean | two }}, difference
{{ (row.score - row.human_mean) | signed }}; {{ row.heard.facts }}</p>
{{ row.strip }}
{{ before(row.heard) }}
{{ answer(row.heard) }}
<p class="note names">Ratings: {% for rater, score in row.ratings %}{{ rater }}: {{ score | plain }}
{{- ", " if not loop.last }}{% endfor %}</p>
</article>
{% endmacro %}
{% block content %}
<header>
<h1>How well does {{ report.judge }} agree with people?</h1>
<p>{{ report.dataset.name }}, {{ scored }}</p>
</header>
{% if report.dataset.synthetic %}
<p class="banner"><strong>Synthetic data.</strong> The ratings come from a simulated panel, not from people.
The numbers show that the pipeline works; they say nothing about agreement with human listeners.</p>
{% endif %}
<div class="card verdicts">
{% for d in dimensions %}
<div class="{{ d.verdict.tone }}"><h2>{{ d.name }}</h2>
<p class="first">{{ d.verdict.text }}</p>
<p><span class="dot {{ d.listening.tone }}"></span>{{ d.listening.text }}</p></div>
{% endfor %}
</div>
{% if dimensions | length > 1 %}
<nav aria-label="On this page">
{% for d in dimensions %}<a href="#dimension-{{ loop.index }}">{{ d.name }}</a>{% endfor %}
<a href="#provenance">Where these numbers come from</a>
</nav>
{% endif %}
{% for d in dimensions %}
<section id="dimension-{{ loop.index }}">
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
<div class="tile"><b>{{ d.report.like_for_like.difference.value | signed }}</b>
<span>difference from one rater<br>{{ interval(d.report.like_for_like.difference) }}</span></div>
<div class="tile"><b>{{ d.report.like_for_like.effective_raters.value | two }}</b>
<span>effective number of raters<br>{{ interval(d.report.like_for_like.effective_raters) }}</span></div>
<div class="tile"><b>{{ d.report.n_items }}</b>
<span>items in {{ d.report.n_groups }} groups,<br>{{ d.report.n_raters }} raters,
{{ d.report.n_ratings }} ratings</span></div>
</div>
{% for warning in d.warnings %}
<p class="note"><strong>Note.</strong> {{ warning }}</p>
{% endfor %}
</div>
{% if d.checks %}
<div class="card"><h3>Does it listen?</h3><div class="figure dots">{{ d.bars }}</div>
<p class="note">Bars: Spearman with the same human scores when something is taken away from the judge's input.
Dark lines: 95 % intervals. Dashed: the best possible. A missing context may be something the judge has never
met; a swapped one is as real as its own, so that check weighs more.</p></div>
<div class="card grouped">
{% for group in d.checks %}
<h4 class="expects-title">{{ group.title }}</h4><p class="expects">{{ group.meaning }}</p>
<ul class="checks">
{% for check in group.checks %}
<li><strong>{{ check.view.title }}<span class="mark {{ check.view.tone }}">{{ check.view.mark }}</span></strong>
<span>{{ check.view.text }}</span>
<span class="means">Removes {{ check.removes }}. Keeps {{ check.keeps }}.
{% if check.failed %}Without a score: {{ check.failed }}.{% endif %}</span></li>
{% endfor %}
</ul>
{% endfor %}
</div>
{% endif %}
{% if d.scatter %}
<div class="columns">
<div class="card"><h3>Every item</h3><div class="figure square">{{ d.scatter }}</div>
<p class="note">One point per item. On the dashed line judge and people give the same score.</p></div>
<div class="card"><h3>What a score means</h3><div class="figure square">{{ d.calibration }}</div>
<p class="note">Items in bins by judge score: where people stand, on average, when the judge gives this score.
Bars: 95 % intervals of the mean.</p>
<div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">scores</th><th scope="col" class="number">mean</th>
<th scope="col" class="number">root mean square</th>
<th scope="col" class="number">calibration</th></tr></thead>
<tbody>
{% for row in d.errors %}
<tr><th scope="row">{{ row.name }}</th><td class="number">{{ row.mae.value | two }}</td>
<td class="number">{{ row.rmse.value | two }}</td><td class="number">{{ row.error.value | two }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Errors in rating points. A mapping is fitted on other groups than it is measured on.</p></div>
</div>
{% endif %}
{% if d.uncertainty %}
<div class="card"><h3>How sure is it, and rightly?</h3>
{% for sentence in d.uncertainty.sentences %}<p>{{ sentence }}</p>
{% endfor %}
{% if d.uncertainty.rows %}
<div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">intervals that should cover</th><th scope="col">cover</th>
<th scope="col">mean width</th></tr></thead><tbody>
{% for row in d.uncertainty.rows %}
<tr><th scope="row">{{ row.level | percent }}</th><td>{{ statistic(row.covered) }}</td>
<td>{{ statistic(row.width) }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Shares of items whose mean rating lies inside, widths in rating points, 95 % intervals. The promise is
for all items together, on data like that of the calibration: it may fail in a slice, or on other data.</p>
{% endif %}
</div>
{% endif %}
<div class="card"><h3>Judge and ceilings</h3><div class="scroll" tabindex="0"><table class="measures">
<thead><tr><th scope="col">measure</th><th scope="col">value</th><th scope="col">what it says</th></tr></thead>
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
cluster bootstrap, {{ report.resamples }} draws of whole {{ drawn }}.</p></div>
{% for slice in d.slices %}
<div class="card"><h3>By {{ slice.column }}</h3>
<div class="figure dots">{{ slice.chart }}</div>
<p class="note">Spearman inside each slice{{ slice.of_all }}, with 95 % intervals; dashed: all items together.</p>
<details><summary>In numbers</summary><div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">{{ slice.column }}</th><th scope="col">Spearman</th>
<th scope="col" class="number">mean error</th>
<th scope="col" class="number">bias</th><th scope="col" class="number">items</th>
<th scope="col" class="number">groups</th>
{% for title in slice.checks %}<th scope="col">{{ title }}</th>{% endfor %}</tr></thead><tbody>
{% for row in slice.rows %}
<tr><th scope="row">{{ row.value }}</th><td>{{ statistic(row.report.spearman) }}</td>
<td class="number">{{ row.report.mae.value | two }}</td>
<td class="number">{{ row.report.bias.value | signed }}</td>
<td class="number">{{ row.report.n_items }}</td><td class="number">{{ row.report.n_groups }}</td>
{% for check in row.checks %}<td>{{ statistic(check.spearman) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if slice.checks %}<p class="note">Listening checks: what is left of the Spearman inside the slice.</p>{% endif %}
</details></div>
{% endfor %}
{% if d.systems | length >= 2 %}
<div class="card"><h3>System by system</h3>
<p class="note">A different question: does the judge rank systems as people do? Means of systems agree more
than items do, and there are only {{ d.systems | length }} of them.</p>
<div class="scroll" tabindex="0"><table>
<thead><tr><th>system</th><th class="number">people</th><th class="number">judge</th>
<th class="number">items</th></tr></thead><tbody>
{% for row in d.systems %}
<tr><th scope="row">{{ row.system_id }}</th><td class="number">{{ row.human | two }}</td>
<td class="number">{{ row.judge | two }}</td><td class="number">{{ row.n_items }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">System-level Spearman: {{ statistic(d.report.system_level.spearman) | trim }}; more in the table of
measures.</p></div>
{% endif %}
{% if d.worst %}
<div class="card"><h3>Largest disagreements</h3>
{% if d.heard %}
<p class="note">Listen: is the judge wrong, or are the clip, the text or the raters at fault? Each dot is one rating,
the dark line their mean; the judge's score stands in colour below the line.</p>
<div class="items">
{% for row in d.heard %}
{{ disagreement(row, loop.index) }}
{% endfor %}
</div>
{% else %}
<div class="scroll" tabindex="0"><table class="wide">
<thead><tr><th scope="col">pair</th><th scope="col">group</th><th scope="col">system</th>
<th scope="col" class="number">people</th><th scope="col" class="number">raters</th>
<th scope="col" class="number">judge</th><th scope="col" class="number">difference</th></tr></thead>
<tbody>
{% for row in d.worst %}
<tr><th scope="row">{{ row.pair_id }}</th><td>{{ row.group_id }}</td><td>{{ row.system_id or "" }}</td>
<td class="number">{{ row.human_mean | two }}</td><td class="number">{{ row.n_raters }}</td>
<td class="number">{{ row.score | two }}</td>
<td class="number">{{ (row.score - row.human_mean) | signed }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
</div>
{% endif %}
<details class="card"><summary>The {{ d.report.n_raters }} raters, one by one</summary>
<div class="scroll" tabindex="0"><table>
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
{% if asking %}
<h2>How it was asked</h2>
<div class="card">
{% for sentence in asking %}<p>{{ sentence }}</p>
{% endfor %}
</div>
{% endif %}
<h2 id="provenance">Where these numbers come from</h2>
<div class="card"><div class="scroll" tabindex="0"><table class="wide"><tbody>
{% for name, value in provenance %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Beside this page: all numbers in <code>agreement.json</code> and, a row for each, in
<code>agreement.csv</code>; a table for a paper in <code>agreement.md</code>; every item with its scores in
<code>items.csv</code>.
{% if audio_rule %}The clips are recordings of the dataset, under its licence. {{ audio_rule }}{% endif %}</p></div>
{% endblock %}
"""
