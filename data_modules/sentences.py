"""Sentences that say nothing about feelings, so that only the voice can."""

from __future__ import annotations

from itertools import product

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
    made = (
        form.format(place=place, thing=thing, day=day)
        for form, place, thing, day in product(_REPLIES, _PLACES, _THINGS, _DAYS)
    )
    return list(dict.fromkeys(made))


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
    return [form.format(place=place) for form, place in product(_SHORT_REPLIES, _SHORT_PLACES)]
