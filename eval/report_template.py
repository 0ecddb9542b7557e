"""The wording of the agreement report: a template for `page.render`."""

TEMPLATE = """{% extends "frame" %}
{% from "pieces" import interval, statistic %}
{% block title %}Agreement with people: {{ report.judge }}{% endblock %}
{% block content %}
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
{% endblock %}
"""
