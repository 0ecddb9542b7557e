"""The settings in a spec, and what is wrong with them."""

from __future__ import annotations

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judges.prompted.prices import Price
from empathy_judge.eval.judges.prompted.settings import PromptedSettings, parse_settings


def test_settings():
    settings = parse_settings(["rubric=support", "samples=5", "price=2.5:32:10", "base_url=http://h:1/v1/"], "x")
    assert settings == PromptedSettings(rubric="support", samples=5, price=Price(2.5, 32, 10), base_url="http://h:1/v1")
    for words, temperature in (([], 1), (["samples=1"], 0), (["samples=1", "temperature=0.7"], 0.7)):
        assert parse_settings(words, "x").sampling_temperature == temperature


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rubric=kindness", "'vocal', 'attunement', 'support' or 'plain'"),
        ("samples=1_0", "decimal digits"),
        ("samples=012", "decimal digits"),
        ("temperature=0_1", "decimal digits"),
        ("price=1_0:1:1", "TEXT_IN"),
        ("samples=0", "greater than or equal to 1"),
        ("samples=1e3", "a valid integer"),
        ("temperature=nan", "decimal digits"),
        ("price=1:2", "TEXT_IN:AUDIO_IN:OUT"),
        ("price=-1:2:3", "TEXT_IN:AUDIO_IN:OUT"),
        ("base_url=ftp://host", "http://HOST"),
        ("base_url=https://me:secret@host/v1", "without a user name or a password"),
        ("base_url=http://host/v1?api-key=secret", "without ? and #"),
        ("base_url=http://host/v1#", "without ? and #"),
        ("concurrency=2.5", "a valid integer"),
        ("opponents=3", "a multiple of 2"),
        ("voice=alloy", "expected NAME=VALUE of mode, rubric"),
        ("samples", "NAME=VALUE"),
    ],
)
def test_bad_settings_are_named(setting, expected):
    with pytest.raises(UserError) as told:
        parse_settings([setting], "openai:m")
    assert expected in str(told.value)
    assert setting.partition("=")[0] in str(told.value)


def test_a_setting_that_comes_twice_is_refused():
    with pytest.raises(UserError, match="samples comes twice; expected each setting once"):
        parse_settings(["samples=1", "samples=2"], "openai:m")
