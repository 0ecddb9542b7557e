"""What pages with players share: how a pair is shown, with its clips, texts and ratings."""

from __future__ import annotations

from typing import Any

from ...data_modules.schema import Pair
from .playable import Players

STYLES = """
.items { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 16px;
  align-items: start; margin-top: 16px; }
.items .card { margin: 0; padding: 16px; background: var(--ground); }
h4 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
h4 + p { margin: 2px 0 8px; overflow-wrap: anywhere; }
.strip { display: block; margin: 0 0 6px; overflow: visible; }
.strip .axis { stroke: var(--muted); stroke-width: 1; }
.strip .mean { stroke: var(--ink); stroke-width: 2; }
.strip circle { fill: var(--accent); stroke: var(--card); stroke-width: 1; }
.strip text { fill: var(--muted); font-size: 12px; }
.judged .strip text:last-of-type { fill: var(--warn); font-weight: 700; }
.judged .strip .axis:nth-last-of-type(2) { stroke: var(--warn); stroke-width: 3; }
.clip { margin: 10px 0 0; }
.clip span { display: block; font-size: 0.86rem; color: var(--muted); margin-bottom: 2px; overflow-wrap: anywhere; }
.clip.response span { color: var(--ink); font-weight: 600; }
audio { display: block; width: 100%; height: 40px; }
.quoted { margin: 8px 0 0; font-size: 0.92rem; max-height: 9.5em; overflow: auto; white-space: pre-line;
  overflow-wrap: anywhere; }
.quoted b { color: var(--muted); font-weight: 600; margin-right: 4px; }
.names { overflow-wrap: anywhere; margin: 0; font-size: 0.9rem; }
"""

MACROS = """{% macro clip(player, title, label, kind) %}
<div class="clip {{ kind }}"><span>{{ title }}{% if player.seconds is not none %},
{{ "%.1f" | format(player.seconds) }} s{% endif %}</span>
{% if player.address is none %}<p class="note">Cannot be played: {{ player.problem }}</p>
{% else %}<audio controls preload="none" src="{{ player.address }}" aria-label="{{ label }}"></audio>
{% endif %}</div>
{% endmacro %}
{% macro text(title, words) %}
{% if words %}<p class="quoted" tabindex="0"><b>{{ title }}</b>{{ words }}</p>{% endif %}
{% endmacro %}
{% macro before(heard) %}
{% for player, turn in heard.context %}
{{ clip(player, turn, turn ~ " of " ~ heard.pair.pair_id, "context") }}
{% else %}
<p class="note">No context audio.</p>
{% endfor %}
{{ text("Context:", heard.pair.context_text) }}
{% endmacro %}
{% macro answer(heard) %}
{{ clip(heard.response, "Response", "Response of " ~ heard.pair.pair_id, "response") }}
{{ text("Response:", heard.pair.response_text) }}
{{ text("Situation:", heard.pair.situation) }}
{% endmacro %}
"""
"""Over what `heard` returns."""


def heard(pair: Pair, players: Players) -> dict[str, Any]:
    """Players and facts of a pair, as `MACROS` show them; its clips go into `players`."""
    facts = {
        "group": pair.group_id,
        "system": pair.system_id,
        "speaker": pair.response_speaker,
        "setting": pair.setting,
        "language": pair.language,
        "split": pair.split,
        **dict(pair.tags),
    }
    several = len(pair.context) > 1
    return {
        "pair": pair,
        "facts": ", ".join(f"{name} {value}" for name, value in facts.items() if value),
        "context": [
            (players.add(turn.audio), f"Context{f' {number}' if several else ''} ({turn.role})")
            for number, turn in enumerate(pair.context, start=1)
        ],
        "response": players.add(pair.response),
    }
