"""The wording of the inspection page: a template for `page.render`, and the styles that only it needs."""

from ..pages.page import read

STYLES = (
    read("sound.css")
    + """
h2.small { font-size: 1rem; margin: 0 0 10px; }
.figure.strips svg { max-width: 560px; margin: 0; }
.raters td:not(.number) { min-width: 10em; }
nav a { overflow-wrap: anywhere; }
.items details { margin-top: 10px; font-size: 0.9rem; }
.items summary { font-weight: 500; color: var(--muted); }
.card > details { margin-top: 12px; }
details.group { margin: 16px 0; }
details.group > summary { font-size: 1.05rem; overflow-wrap: anywhere; }
.counts td, .counts th { white-space: nowrap; }
.counts tbody th { min-width: 5em; }
.figure + .note { margin-top: 6px; }
@media print {
  body { font-size: 11pt; background: none; }
  main { max-width: none; padding: 0; }
  nav, audio { display: none; }
  .card, tr, .clip { break-inside: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  th, td { padding-right: 8px; }
  thead th:not(.number), .counts thead th.number { white-space: normal; }
  tbody th, .raters td:not(.number) { min-width: 5em; }
  .quoted { max-height: none; overflow: visible; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""
)

TEMPLATE = """{% extends "frame" %}
{% from "pieces" import interval, statistic %}
{% from "sound" import before, answer %}
{% block title %}Inspection of {{ found.name }}{% endblock %}
{% macro tile(value, s, text, main=false) %}
<div class="tile{{ " main" if main }}"><b>{{ value }}</b><span>{{ text }}<br>{{ interval(s) }}</span></div>
{% endmacro %}
{% macro disputed_item(item, n) %}
<article class="card">
<h4>{{ n }}. {{ item.heard.pair.pair_id }}</h4>
<p class="note">spread {{ item.spread | two }}, {{ item.heard.facts }}</p>
{{ item.strip }}
{{ before(item.heard) }}
{{ answer(item.heard) }}
<details><summary>Who gave which of the {{ item.scores | length }} ratings</summary>
<p class="names">{% for rater, score in item.scores %}{{ rater }}: {{ score | plain }}{{ ", " if not loop.last }}
{% endfor %}</p></details>
</article>
{% endmacro %}
{% macro disputed_couple(couple, n) %}
<article class="card">
<h4>{{ n }}. {{ couple.heard[0].pair.pair_id }} or {{ couple.heard[1].pair.pair_id }}?</h4>
<p class="note">{{ couple.votes }}</p>
{% for heard in couple.heard %}
{% if loop.first or not couple.same_context %}{{ before(heard) }}{% endif %}
<p class="note">{{ "First" if loop.first else "Second" }}: {{ heard.pair.pair_id }}, {{ heard.facts }}</p>
{{ answer(heard) }}
{% endfor %}
</article>
{% endmacro %}
{% block content %}
<header>
<h1>What is in {{ found.name }}?</h1>
<p>{{ subtitle }}</p>
</header>
{% if found.synthetic %}
<p class="banner"><strong>Synthetic data.</strong> The ratings come from a simulated panel, not from people.
They show that the pipeline works; they say nothing about human listeners.</p>
{% endif %}
<nav aria-label="On this page">
{% for d in dimensions %}<a href="#dimension-{{ loop.index }}">{{ d.name }}</a>{% endfor %}
<a href="#clips">Clips</a><a href="#splits">Splits</a>{% if skipped.rows %}<a href="#skipped">Skipped pairs</a>
{% endif %}<a href="#disputed">Most disputed items</a>
</nav>
<section>
<div class="columns">
<div class="card"><h2 class="small">Before training</h2><ul class="checks">
{% for check in verdicts %}
<li><strong>{{ check.title }}<span class="mark {{ check.tone }}">{{ check.mark }}</span></strong>
<span>{{ check.text }}</span></li>
{% endfor %}
</ul></div>
<div class="card"><h2 class="small">What it is</h2><div class="scroll" tabindex="0"><table class="wide"><tbody>
{% for name, value in origin %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div></div>
</div>
<div class="card"><h2 class="small">How much there is</h2><div class="scroll" tabindex="0"><table class="counts">
<thead><tr><th scope="col">split</th>
{% for fact in counts.facts %}<th scope="col" class="number">{{ fact }}</th>{% endfor %}</tr></thead><tbody>
{% for split, numbers in counts.rows %}
<tr><th scope="row">{{ split }}</th>{% for value in numbers %}<td class="number">{{ "{:,}".format(value) }}</td>
{% endfor %}</tr>
{% endfor %}
</tbody></table></div></div>
</section>
{% for d in dimensions %}
<section id="dimension-{{ loop.index }}">
<h2>{{ d.name }}</h2>
<div class="card">
<p class="headline">{{ d.sentences }}</p>
{% if d.panel.n_ratings %}
<div class="tiles">
{{ tile(d.panel.spearman.value | two, d.panel.spearman, "one rater and the others", true) }}
{{ tile(d.panel.panel_mean.value | two, d.panel.panel_mean, "best possible for a judge") }}
{{ tile(d.panel.panel_reliability.value | two, d.panel.panel_reliability, "reliability of the panel mean") }}
{{ tile(d.panel.krippendorff_alpha.value | two, d.panel.krippendorff_alpha, "Krippendorff's alpha, interval") }}
<div class="tile"><b>{{ d.scores.mean | two }}</b><span>mean rating<br>scale {{ d.scores.scale }}
{% if not d.scores.higher_is_better %}, low is good{% endif %}</span></div>
</div>
{% endif %}
{% if d.preferences %}<p class="note">{{ d.preferences }}</p>{% endif %}
</div>
{% if d.histogram %}
<div class="columns">
<div class="card"><h3>Ratings</h3><div class="figure square">{{ d.histogram }}</div></div>
<div class="card"><h3>Raters per pair</h3>
{% if d.coverage %}<div class="figure square">{{ d.coverage }}</div>
{% else %}<p class="note">{{ d.coverage_text }}</p>{% endif %}</div>
</div>
<div class="card"><h3>Rater by rater</h3><div class="figure strips">{{ d.strips }}</div>
<p class="note">One line per rater{{ d.strips_of }}, in the order of their means. Darker = a larger share of
the rater's own ratings; dot = mean; line = one standard deviation to either side; dashed = mean of all ratings. A
dot far off may be severity, or other items than the rest had: see severity below.</p>
<details{{ " open" if d.raters | length <= 12 }}><summary>The {{ d.raters | length }} raters in numbers</summary>
<div class="scroll" tabindex="0"><table class="raters"><thead><tr><th scope="col">rater</th>
<th scope="col" class="number">ratings</th><th scope="col" class="number">mean</th><th scope="col">severity</th>
<th scope="col" class="number">spread</th><th scope="col">agreement with the others</th>
{% if d.is_timed %}<th scope="col" class="number">median time (s)</th>{% endif %}
<th scope="col">to ask about</th></tr></thead><tbody>
{% for rater in d.raters %}
<tr><th scope="row">{{ rater.rater_id }}</th><td class="number">{{ "{:,}".format(rater.n_ratings) }}</td>
<td class="number">{{ rater.mean | two }}</td><td>{{ statistic(rater.severity) }}</td>
<td class="number">{{ rater.spread | two }}</td><td>{{ statistic(rater.agreement) }}</td>
{% if d.is_timed %}<td class="number">{{ rater.median_seconds | two }}</td>{% endif %}
<td>{% for flag in rater.flags %}<div><span class="mark warn">{{ flag.kind }}</span> {{ flag.evidence }}</div>
{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">Severity: how many rating points below the others this rater is on the same items. Spread: 1 = uses
the scale as widely as the others do on the same items. Agreement: Spearman with the mean of the others.</p>
</details></div>
{% endif %}
</section>
{% endfor %}
<section id="clips">
<h2>Clips</h2>
<div class="columns">
{% for c in clips %}
<div class="card"><h3>{{ c.title }}</h3>
{% if c.chart %}<div class="figure square">{{ c.chart }}</div>{% endif %}
<p class="note">{{ c.text }}</p></div>
{% endfor %}
</div>
{% for name in without_clips %}<p class="note">There is no {{ name }} audio.</p>{% endfor %}
{% if problems.rows %}
<div class="card"><h3>Clips to look at</h3><div class="scroll" tabindex="0"><table class="wide">
<thead><tr><th scope="col">what</th><th scope="col">pair</th><th scope="col">clip</th>
<th scope="col">measured</th></tr></thead><tbody>
{% for kind, pair_id, where, detail in problems.rows %}
<tr><td>{{ kind }}</td><td>{{ pair_id }}</td><td>{{ where }}</td><td>{{ detail }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if problems.more %}<p class="note">And {{ problems.more }} more: empathy-judge inspect --json lists all.</p>
{% endif %}</div>
{% endif %}
</section>
<section id="splits">
<h2>Splits</h2>
{% if audit %}
<div class="card"><h3>What is in several splits</h3><div class="scroll" tabindex="0"><table class="wide">
<thead><tr><th scope="col">what</th><th scope="col">verdict</th><th scope="col" class="number">in several splits</th>
<th scope="col">for example</th></tr></thead><tbody>
{% for row in audit %}
<tr><th scope="row">{{ row.title }}</th><td><span class="mark {{ row.tone }}">{{ row.mark }}</span></td>
<td class="number">{{ "{:,}".format(row.count) }}</td><td>{% for value, splits in row.examples %}
<div>{{ value }}<small>{{ splits }}</small></div>{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="note">The splits were made by {{ found.split_by | join(", ") }}. Near-identical: copies by their sound,
such as the same recording in another format. What is not refused is shown because it can make a test easier
than it looks.</p>
</div>
{% else %}
<p class="note">The pairs are not split yet, so there is nothing to audit.</p>
{% endif %}
</section>
{% if skipped.rows %}
<section id="skipped">
<h2>Skipped pairs</h2>
<div class="card"><p class="note">What the import could not use; skipped.csv beside the dataset lists all.</p>
<div class="scroll" tabindex="0"><table class="wide"><thead><tr>
{% for name in skipped.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in skipped.rows %}
<tr>{% for name in skipped.columns %}<td>{{ row.get(name, "") }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if skipped.more %}<p class="note">And {{ skipped.more }} more.</p>{% endif %}</div>
</section>
{% endif %}
<section id="disputed">
<h2>Most disputed items</h2>
{% if found.counts.all.ratings %}
<p class="note">The items whose ratings differ most between raters, by the standard deviation of their ratings
(at most {{ disputed_items }}{% if dimensions | length > 1 %} per dimension{% endif %}). Listen: are the people at
odds, or is the clip, the text or the question at fault? Each dot is one rating, the dark line their mean.</p>
{% endif %}
{% for d in dimensions %}
{% if dimensions | length > 1 %}<details class="group"{{ " open" if loop.first }}>
<summary>{{ d.name }}: {{ d.disputed | length + d.couples | length }} items</summary>{% endif %}
{% if d.disputed %}
<div class="items">
{% for item in d.disputed %}
{{ disputed_item(item, loop.index) }}
{% endfor %}
</div>
{% elif not d.couples %}
<p class="note">{{ "No pair has two raters who differ." if d.panel.n_ratings else "Nobody rated the pairs." }}</p>
{% endif %}
{% if d.couples %}
<p class="note">Comparisons on which raters differ most, by the share of votes against the most frequent verdict:</p>
<div class="items">
{% for couple in d.couples %}
{{ disputed_couple(couple, loop.index) }}
{% endfor %}
</div>
{% endif %}
{% if dimensions | length > 1 %}</details>{% endif %}
{% endfor %}
{% if audio_rule %}<p class="note">The clips lie in the folder audio beside this page: pass on both. {{ audio_rule }}
They are recordings of the dataset, under its licence.</p>{% endif %}
</section>
{% endblock %}
"""
