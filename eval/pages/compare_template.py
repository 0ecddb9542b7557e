"""The wording of the comparison of judges: a template for `page.render`, and the styles that only it needs."""

STYLES = """
.figure.dots svg { max-width: 640px; margin: 0; }
.cluster { border: 2px solid var(--pale); border-radius: 12px; margin: 16px 0 0; padding: 0 16px;
  background: var(--card); }
.cluster.none { border-style: dashed; }
.cluster > h3 { font-size: 0.86rem; color: var(--muted); margin: 10px 0 0; }
.judge { padding: 12px 0; border-top: 1px solid var(--line); display: grid; gap: 2px 20px;
  grid-template-columns: minmax(0, 1fr) auto; }
.cluster > h3 + .judge { border-top: 0; }
.judge h4 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.judge b { font-size: 1.3rem; line-height: 1.2; font-variant-numeric: tabular-nums; text-align: right; }
.judge b small { display: block; font-size: 0.8rem; font-weight: 400; color: var(--muted); }
.judge p { margin: 4px 0 0; grid-column: 1 / -1; max-width: 60em; overflow-wrap: anywhere; }
.judge p.listens { color: var(--muted); font-size: 0.92rem; }
.asked th { white-space: normal; min-width: 0; }
.asked tbody th { min-width: 11em; }
.asked td.number { white-space: normal; min-width: 4em; }
.banner + section h2, .banner + .card { margin-top: 24px; }
@media (max-width: 600px) { .card { padding: 14px; } main { padding: 20px 12px 48px; } }
@media print { nav { display: none; } .card, tr, .judge { break-inside: avoid; } .scroll { overflow: visible; } }
"""

TEMPLATE = """{% extends "frame" %}
{% from "pieces" import interval, statistic %}
{% block title %}{{ judges | length }} judges compared on {{ report.dataset.name }}{% endblock %}
{% macro judge(entry) %}
<div class="judge"><h4>{{ entry.judge }}</h4>
<b>{{ entry.spearman | two }}<small>{% if entry.report %}{{ interval(entry.report.spearman) }}{% endif %}</small></b>
{% if entry.reason %}<p>Not ranked: {{ entry.reason }}.</p>{% endif %}
{% if entry.report %}
<p><span class="dot {{ entry.report.verdict.tone }}"></span>{{ entry.report.verdict.text }}</p>
<p class="listens"><span class="dot {{ entry.listening.tone }}"></span>{{ entry.listening.text }}</p>
{% for sentence in entry.length %}<p class="listens"><span class="dot warn"></span>{{ sentence }}</p>
{% endfor %}
{% endif %}
</div>
{% endmacro %}
{% block content %}
<header>
<h1>Which judge agrees with people?</h1>
<p>{{ judges | length }} judges on {{ report.dataset.name }}, {{ scored }}</p>
</header>
{% if report.dataset.synthetic %}
<p class="banner"><strong>Synthetic data.</strong> The ratings come from a simulated panel, not from people.
The numbers show that the pipeline works; they say nothing about agreement with human listeners.</p>
{% endif %}
{% if dimensions | length > 1 %}
<nav aria-label="On this page">
{% for d in dimensions %}<a href="#dimension-{{ loop.index }}">{{ d.name }}</a>{% endfor %}
<a href="#provenance">Where these numbers come from</a>
</nav>
{% endif %}
{% for d in dimensions %}
<section id="dimension-{{ loop.index }}">
<h2>{{ d.name }}</h2>
<div class="card"><p class="headline">{{ d.words }}</p></div>
{% if d.chart %}
<div class="card"><h3>Agreement with people</h3><div class="figure dots">{{ d.chart }}</div>
<p class="note">Dots: Spearman with the panel mean; lines: 95 % intervals; frames: clusters, each clearly better
than the next, inside which the data do not tell every judge apart from every other; dashed: the best possible
on the items of the first judge. Intervals may overlap between judges that are told apart: they are compared
item by item.</p></div>
{% endif %}
{% for cluster in d.clusters %}
<div class="cluster"><h3>Cluster {{ cluster.number }}</h3>
{% for entry in cluster.judges %}{{ judge(entry) }}{% endfor %}
</div>
{% endfor %}
{% if d.unranked %}
<div class="cluster none"><h3>Without a rank</h3>
{% for entry in d.unranked %}{{ judge(entry) }}{% endfor %}
</div>
{% endif %}
{% if d.panel %}
<div class="card"><h3>Judge and panel mean as two raters</h3><div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">judge</th>
{% for name in panel_head %}<th scope="col"{% if not loop.first %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}</tr></thead><tbody>
{% for judge, rows in d.panel %}{% for row in rows %}
<tr><th scope="row">{{ judge }}</th>
{% for cell in row %}<td{% if not loop.first %} class="number"{% endif %}>{{ cell }}</td>
{% endfor %}</tr>
{% endfor %}{% endfor %}
</tbody></table></div>
<p class="note">{{ panel_means }}</p></div>
{% endif %}
{% if d.comparisons %}
<div class="card"><h3>Judge against judge</h3><div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">higher</th><th scope="col">lower</th><th scope="col">difference</th>
<th scope="col" class="number">p</th><th scope="col" class="number">p, adjusted</th><th scope="col">told apart</th>
<th scope="col" class="number">groups needed</th><th scope="col" class="number">items</th>
<th scope="col" class="number">groups</th></tr></thead><tbody>
{% for row in d.comparisons %}
<tr><th scope="row">{{ row.better }}</th><th scope="row">{{ row.worse }}</th><td>{{ statistic(row.difference) }}</td>
<td class="number">{{ row.p }}</td><td class="number">{{ row.p_adjusted }}</td>
<td><span class="mark {{ "good" if row.told_apart else "none" }}">{{ "yes" if row.told_apart else "no" }}</span></td>
<td class="number">{{ row.needed }}{% if row.between %}<small>{{ row.between }}</small>{% endif %}</td>
<td class="number">{{ row.n_items }}</td><td class="number">{{ row.n_groups }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Differences of Spearman over the items that both scored, with the interval of a paired bootstrap of
whole {{ drawn }}. p: paired permutation test; adjusted for all pairs of judges (Holm). Groups needed: as many in all
would show the observed difference with a power of 0.8; the range holds at the ends of its interval.</p></div>
{% endif %}
</section>
{% endfor %}
{% if alone %}
<h2>Scored by one judge only</h2>
<div class="card"><ul class="checks">
{% for name, judge, text in alone %}
<li><strong>{{ name }}: {{ judge }}</strong><span>{{ text }}</span></li>
{% endfor %}
</ul></div>
{% endif %}
{% if asked %}
<h2>What asking took</h2>
<div class="card"><div class="scroll" tabindex="0"><table class="asked">
<thead><tr>{% for name in asked_head %}<th scope="col"{% if loop.index > 2 %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}</tr></thead><tbody>
{% for row in asked %}
<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>{% else %}
<td{% if loop.index > 2 %} class="number"{% endif %}>{{ cell }}</td>{% endif %}
{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<p class="note">Cost of all answers, those of earlier runs included. {{ seconds_mean }}
Failures: share of the questions. ICC of repeats: share of the variance of one answer that comes from the pairs; 1 = it
always says the same. Orders disagree: comparisons whose two orders do not prefer the same response; a judge without a
taste prefers the first place half the time. In brackets: 95 % intervals.</p></div>
{% endif %}
<h2 id="provenance">Where these numbers come from</h2>
<div class="card"><div class="scroll" tabindex="0"><table class="wide"><tbody>
{% for name, value in provenance %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Beside this page: all numbers in <code>comparison.json</code>, a table for a paper in
<code>comparison.md</code>.</p></div>
{% endblock %}
"""
