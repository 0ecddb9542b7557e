"""The sample: neutral sentences spoken by espeak-ng in many tones, rated by a simulated panel. Synthetic throughout.

**The rule.** A context is spoken in one of five tones, a response in one of five others. `FIT` says how well each
response tone suits each context tone, in rating points. Which response tone is best depends on the context tone, so
neither clip alone tells the score. Eight raters hear the fit through their own severity, spread and noise, give whole
points from 1 to 5 and leave out a quarter of the items. No person rated anything, and no word says anything about
feelings.
"""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import soundfile
import torch

from ..audio.decode import audio_hash, resample
from ..audio.espeak import ACCENTS, Tone, Voice, speak
from ..core.processes import in_fresh_processes, progress
from ..core.staging import staged_folder
from .ratings import RATING_COLUMNS
from .schema import DatasetCard, Dimension
from .writing import write_dataset

RATE = 16_000
DIMENSION = Dimension("vocal_empathy", 1.0, 5.0, 1.0)
CONTEXT_TONES = {
    "downcast": Tone(pitch=-2.5, range=0.4, rate=130, level=-33, quality="breathy"),
    "tense": Tone(pitch=3.5, range=0.5, rate=220, level=-29),
    "irritated": Tone(pitch=0.5, range=1.8, rate=200, level=-18, quality="rough"),
    "elated": Tone(pitch=4.0, range=2.7, rate=205, level=-19),
    "even": Tone(pitch=0.0, range=1.0, rate=165, level=-25),
}
RESPONSE_TONES = {
    "gentle": Tone(pitch=-1.0, range=1.2, rate=135, level=-32, quality="breathy"),
    "steady": Tone(pitch=-2.5, range=0.9, rate=145, level=-23),
    "bright": Tone(pitch=4.0, range=2.7, rate=205, level=-19),
    "brisk": Tone(pitch=0.5, range=1.0, rate=235, level=-20, quality="rough"),
    "flat": Tone(pitch=0.5, range=0.0, rate=180, level=-27),
}
FIT = pd.DataFrame(
    {
        "gentle": (5.0, 3.6, 1.8, 1.6, 2.6),
        "steady": (3.4, 5.0, 4.6, 1.8, 3.0),
        "bright": (1.4, 1.8, 1.0, 5.0, 3.2),
        "brisk": (1.0, 1.2, 3.4, 3.8, 2.2),
        "flat": (2.6, 2.8, 2.4, 1.0, 4.4),
    },
    index=list(CONTEXT_TONES),
)
"""Fit of a response tone (column) to a context tone (row) in rating points."""
SYSTEMS = {f"house-style-{tone}": tone for tone in RESPONSE_TONES}
"""Simulated systems; each speaks half of its responses in a tone of its own, whatever the context."""
RATERS = 8
_MISSING = 0.25
_SHARD = 100  # groups that one fresh process makes; espeak-ng keeps state between sentences
_DESCRIPTION = (
    "Neutral sentences in many tones, rated by a simulated panel under a fixed rule: the fit between the tone of the "
    "context and the tone of the response. No person rated anything; it shows that the pipeline works and says nothing "
    "about how well a judge agrees with people."
)
_SEX = {"f": "female", "m": "male"}
_SHAPES = {"context_variant": (5, 3), "tone_variant": (3, 5)}  # context tones and response tones of one script


def make_sample(folder: Path, groups: int = 200, seed: int = 0, workers: int = 2) -> pd.DataFrame:
    """Write the sample as a pair dataset.

    A group is one script: a context sentence and a response sentence, spoken by two voices in several tones each, every
    context with every response (15 pairs). The same arguments give the same audio and ratings, whatever `workers`.

    Args:
        folder: Folder to write; it appears complete or not at all.
        groups: Number of scripts.
        seed: Seed of everything random.
        workers: Number of processes that synthesise. They import the script that calls this.

    Returns:
        The key that raters and judges never see, one row per pair: `pair_id`, `context_tone`, `response_tone`, `fit`.

    Raises:
        UserError: If such a process ends early.
    """
    with staged_folder(folder) as staged:
        (staged / "audio").mkdir(parents=True)
        shards = [range(start, min(start + _SHARD, groups)) for start in range(0, groups, _SHARD)]
        made = in_fresh_processes(partial(_make_shard, staged, seed), shards, workers)
        rows = pd.DataFrame([row for shard in progress(made, "speaking", len(shards)) for row in shard])
        key = rows.loc[:, ["pair_id", "context_tone", "response_tone", "fit"]]
        ratings = rate(key, seed)
        pairs = rows.drop(columns=["context_tone", "response_tone", "fit"])
        card = DatasetCard(
            name="espeak-sample",
            dimensions=(DIMENSION,),
            source=f"synthesised by espeak-ng: {groups} scripts, seed {seed}",
            licence="CC0-1.0",
            synthetic=True,
            description=_DESCRIPTION,
        )
        write_dataset(staged, card, pairs, ratings)
    return key


def rate(key: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Ratings of the simulated panel: `pair_id, rater_id, dimension, score`, missing ones left out.

    Rater r gives `round(3 + bias_r + spread_r * (fit - 3) + noise)`, kept on the scale; bias has a deviation of 0.35
    points, spread lies between 0.8 and 1.2, noise has a deviation of 0.5 points.
    """
    # Other streams than those of the audio (2): another panel would not change a clip
    rng = np.random.default_rng([seed, 1])
    bias = rng.normal(0, 0.35, RATERS)
    spread = rng.uniform(0.8, 1.2, RATERS)
    perceived = 3 + bias + spread * (key["fit"].to_numpy()[:, None] - 3) + rng.normal(0, 0.5, (len(key), RATERS))
    scores = np.clip(np.round(perceived), DIMENSION.minimum, DIMENSION.maximum)
    is_rated = rng.random(scores.shape) >= _MISSING
    # Every pair keeps at least one rating, else the sample would hold pairs that nobody can learn from.
    is_rated[np.arange(len(key)), rng.integers(RATERS, size=len(key))] = True
    items, raters = np.nonzero(is_rated)
    return pd.DataFrame(
        {
            "pair_id": key["pair_id"].to_numpy()[items],
            "rater_id": [f"simulated-{number + 1}" for number in raters],
            "dimension": DIMENSION.name,
            "score": scores[items, raters],
        },
        columns=list(RATING_COLUMNS),
    )


def _make_shard(folder: Path, seed: int, groups: range) -> list[dict[str, object]]:
    # Processes fill the cores already: threads of each would only wait for one another
    torch.set_num_threads(1)
    return [row for group in groups for row in _make_group(folder, seed, group)]


def _make_group(folder: Path, seed: int, group: int) -> list[dict[str, object]]:
    # A stream for each group: neither the number of groups nor that of workers changes one
    rng = np.random.default_rng([seed, 2, group])
    setting = "context_variant" if group % 2 == 0 else "tone_variant"
    n_contexts, n_responses = _SHAPES[setting]
    asker, answerer = _voice(rng), _voice(rng)
    context_text = str(rng.choice(short_statements()))
    response_text = str(rng.choice(short_replies()))
    system = str(rng.choice(list(SYSTEMS)))
    context_tones = rng.choice(list(CONTEXT_TONES), n_contexts, replace=False).tolist()
    weights = [0.5 if tone == SYSTEMS[system] else 0.5 / (len(RESPONSE_TONES) - 1) for tone in RESPONSE_TONES]
    # The same tone may come twice: each rendering of it varies (`_vary`)
    response_tones = rng.choice(list(RESPONSE_TONES), n_responses, p=weights).tolist()
    contexts = [(tone, _speak(folder, context_text, asker, CONTEXT_TONES[tone], rng)) for tone in context_tones]
    responses = [(tone, _speak(folder, response_text, answerer, RESPONSE_TONES[tone], rng)) for tone in response_tones]
    return [
        {
            "pair_id": f"pair-{group:04d}-{c}{r}",
            "group_id": f"script-{group:04d}",
            "context_audio": context,
            "response_audio": response,
            "system_id": system,
            "context_speaker": asker.name,
            "response_speaker": answerer.name,
            "setting": setting,
            "tags": {"context_sex": _SEX[asker.sex], "response_sex": _SEX[answerer.sex]},
            "language": "en",
            "context_text": context_text,
            "response_text": response_text,
            "context_tone": context_tone,
            "response_tone": response_tone,
            "fit": float(FIT.loc[context_tone, response_tone]),
        }
        for c, (context_tone, context) in enumerate(contexts)
        for r, (response_tone, response) in enumerate(responses)
    ]


def _voice(rng: np.random.Generator) -> Voice:
    woman = rng.random() < 0.5
    pitch = rng.uniform(170, 240) if woman else rng.uniform(92, 138)
    tract = rng.uniform(1.09, 1.21) if woman else rng.uniform(0.91, 1.03)
    return Voice(str(rng.choice(ACCENTS)), "f" if woman else "m", float(pitch), float(tract))


def _speak(folder: Path, text: str, voice: Voice, tone: Tone, rng: np.random.Generator) -> str:
    """The clip of a sentence, as a path relative to the folder."""
    samples, rate_made = speak(text, voice, _vary(tone, rng))
    resampled = resample(samples, rate_made, RATE)
    temporary = folder / "audio" / f"{rng.integers(2**62):x}.wav"
    # Through memory, because libsndfile does not say what a disk refuses.
    buffer = io.BytesIO()
    soundfile.write(buffer, resampled, RATE, format="WAV", subtype="PCM_16")
    temporary.write_bytes(buffer.getvalue())
    file = f"audio/{audio_hash(temporary)[:20]}.wav"
    temporary.rename(folder / file)
    return file


def _vary(tone: Tone, rng: np.random.Generator) -> Tone:
    """One rendering of a tone: weaker or stronger, and different each time."""
    neutral, strength = Tone(), rng.uniform(0.75, 1.1)

    def cue(target: float, plain: float, deviation: float) -> float:
        return float(plain + strength * (target - plain) + rng.normal(0, deviation))

    return replace(
        tone,
        pitch=cue(tone.pitch, neutral.pitch, 0.5),
        range=max(0.0, cue(tone.range, neutral.range, 0.15)),
        rate=cue(tone.rate, neutral.rate, 7.0),
        level=cue(tone.level, neutral.level, 1.5),
    )


# Sentences that say nothing about feelings, so that only the voice can

_SUBJECTS = (
    "The parcel", "My cousin", "The morning train", "Our neighbour", "The new printer", "The second lecture",
    "The gardener", "Her brother", "The blue folder", "The committee", "The water bottle", "A delivery van",
    "The ticket office", "His teacher", "The small table", "The weekly report", "The library", "The bus driver",
)  # fmt: skip
_EVENTS = (
    "arrived on Tuesday", "moved to the second floor", "was there after lunch", "changed at the last stop",
    "came by this afternoon", "stayed in the office", "is near the front door", "went through the station",
    "was on the list again", "started around nine", "is open until six", "came back from the workshop",
)  # fmt: skip
_TAILS = ("", " with the others", " as the plan said", " before the meeting", " and then left", " like every week")
_REPLIES = (
    "I see, and then you went to the {place}.", "So it was the {thing} in the {place}.",
    "You said that the {thing} came first.", "Then we can look at the {thing} on {day}.",
    "That means the {place} is on the way.", "I have heard about the {thing} as well.",
    "Let us talk about the {place} on {day}.", "There is one more {thing} in the {place}.",
    "We could go over the {thing} step by step.", "Tell me more about the {thing} on {day}.",
)  # fmt: skip
_PLACES = ("kitchen", "office", "garden", "station", "hallway", "market", "workshop", "library")
_THINGS = ("letter", "ticket", "schedule", "drawing", "notebook", "package", "window", "machine", "table")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def statements() -> list[str]:
    """Statements for pre-training, in a fixed order."""
    return [f"{subject} {event}{tail}." for subject, event, tail in product(_SUBJECTS, _EVENTS, _TAILS)]


def replies() -> list[str]:
    """Replies for pre-training, in a fixed order and without repeats."""
    sentences = (
        template.format(place=place, thing=thing, day=day)
        for template, place, thing, day in product(_REPLIES, _PLACES, _THINGS, _DAYS)
    )
    return list(dict.fromkeys(sentences))


_SHORT_SUBJECTS = (
    "The keys", "My notes", "Our tickets", "The plates", "Two boxes", "The forms", "Her books", "The maps",
)  # fmt: skip
_SHORT_PLACES = ("in the car", "by the door", "on the desk", "in the hall", "at the bank", "on the shelf", "in my bag")
_SHORT_REPLIES = (
    "So they are {place}.", "I can look {place}.", "You put them {place}.", "We will start {place}.",
    "Let me check {place}.",
)  # fmt: skip


def short_statements() -> list[str]:
    """What the contexts of the sample say; no sentence of `statements`."""
    return [f"{subject} are {place}." for subject, place in product(_SHORT_SUBJECTS, _SHORT_PLACES)]


def short_replies() -> list[str]:
    """What the responses of the sample say; no sentence of `replies`."""
    return [template.format(place=place) for template, place in product(_SHORT_REPLIES, _SHORT_PLACES)]
