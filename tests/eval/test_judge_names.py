"""Names of judges before anything is loaded: what may have been meant by one that is none."""

from __future__ import annotations

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.eval.judge_names import PROVIDERS, is_prompted, require_judges
from empathy_judge.eval.judges.prompted import factory


def test_the_names_are_those_of_the_providers():
    assert {*factory.PROVIDERS} == {*PROVIDERS}
    assert all(is_prompted(f"{name}:a-model") for name in PROVIDERS)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (
            "openrouter:qwen/qwen3.8-omni-flash",
            "; a server with OpenAI's protocol is openai:qwen/qwen3.8-omni-flash,base_url=https://HOST/v1",
        ),
        ("gemni:gemini-3.8-flash", "; or gemini:gemini-3.8-flash?"),
        ("gemini_decision:gemini-decision-1", "; or gemini-decision:gemini-decision-1?"),
        ("OpenAI:gpt-audio-1.5", "; or openai:gpt-audio-1.5?"),
        ("C:\\judges\\mine", ", constant"),
        ("no/judge", ", constant"),
    ],
)
def test_a_vendor_that_is_none_gets_a_hint(spec, hint):
    with pytest.raises(UserError) as told:
        require_judges([spec])
    assert str(told.value).endswith(hint)
    assert f"VENDOR:MODEL ({', '.join(PROVIDERS)})" in str(told.value)
    assert "\n" not in str(told.value)
