"""The System One protocol: clips beside the state, named in it by position; servers that do not hear."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules.schema import Turn
from empathy_judge.eval.judges import OK
from empathy_judge.eval.judges.prompted.cache import cache_key
from empathy_judge.eval.judges.prompted.costs import disclosure, planned

from ...conftest import dataset_of
from .conftest import EMPATHY, clip
from .servers import SHARES, Request, Response, answer, systemone_answer

VENDOR = "systemone"
GIVEN = {"vocal_empathy": SHARES}
CLOUDFLARE = "https://api.cloudflare.com/client/v4/accounts/an-account"


@pytest.mark.parametrize(("settings", "field"), [([], "audio"), (["clips=audio"], "audio"), (["clips=files"], "files")])
def test_clips_are_data_urls_in_the_order_that_the_state_says(settings, field, scored, make_pairs):
    """Field for field the JSON that typesafe-sdk 0.7.5 (``system_one(extra_body={"audio": ...})``) and litellm 1.110.2
    (``systemone(audio=...)``, ``hosted_vllm/...``) sent to a server on this machine. ``files`` is llama.cpp's (README
    of its server, commit 00dc8057)."""
    (pair,) = make_pairs(1)
    pair = replace(pair, context=(Turn("user", clip(900)), *pair.context), situation="After a funeral.")
    (request,) = scored(VENDOR, answer(VENDOR, GIVEN), pairs=[pair], settings=["samples=1", *settings]).requests
    assert request.path == "/v1/systemone"
    assert set(request.body) == {"model", "state", "questions", field}
    assert request.body["state"].splitlines()[1:] == [
        "Situation: After a funeral.",
        "Context, user (audio): clip 1 of 3",
        "Context, user (audio): clip 2 of 3",
        "Response (audio): clip 3 of 3",
    ]
    clips = [url.removeprefix("data:audio/wav;base64,") for url in request.body[field]]
    lengths = [len(base64.b64decode(one, validate=True)) for one in clips]
    assert len(set(clips)) == 3
    assert lengths == [44 + 2 * 1_600] * 3
    assert [*request.body["questions"]] == ["vocal_empathy"]


def test_the_path_with_and_without_v1(scored):
    for base, path in (("", "/v1/systemone"), ("/v1", "/v1/systemone"), ("/proxy/v1/", "/proxy/v1/systemone")):

        def behave(request: Request, path: str = path) -> Response:
            return Response(answer(VENDOR, GIVEN), 200 if request.path == path else 404)

        found = scored(VENDOR, behave, settings=["samples=1"], base=base)
        assert found.row["status"] == OK


def test_transcripts_need_no_clip(scored):
    found = scored(VENDOR, answer(VENDOR, GIVEN), settings=["samples=1", "hears=transcript"])
    assert set(found.requests[0].body) == {"model", "state", "questions"}
    assert "Response (transcript): Oh no." in found.requests[0].body["state"]


def test_the_field_of_the_clips_is_part_of_the_key_and_the_name(opened, make_pairs):
    judges = [
        opened(f"systemone:m,base_url=http://h{more}", dataset_of([], [], EMPATHY)) for more in ("", ",clips=files")
    ]
    question = judges[0].tasks(make_pairs(1))[0].build()
    assert len({cache_key(judge.session.provider, question, 0) for judge in judges}) == 2
    assert [judge.name for judge in judges] == ["systemone:m@h", "systemone:m@h,clips=files"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("systemone:m", "expected systemone:m,base_url=http://HOST:PORT"),
        ("systemone:m,base_url=http://h,clips=joined", "clips=joined; expected one of audio, files"),
        ("gemini-decision:m,base_url=http://h,clips=files", "clips=files; clips are sent in one way"),
        ("openai:m,base_url=http://h,clips=files", "clips=files; clips are sent in one way"),
        (f"systemone:@cf/cloudflare/clef-omni,base_url={CLOUDFLARE}", "EMPATHY_JUDGE_API_KEY is not set"),
    ],
)
def test_what_cannot_be_asked_is_told(spec, told, opened):
    with pytest.raises(UserError, match=told):
        opened(spec, dataset_of([], [], EMPATHY))


@pytest.mark.parametrize("end", ["", "/ai/run"])
def test_cloudflare_has_an_address_for_each_model_and_customer(end, opened, make_pairs):
    """As litellm 1.110.2 builds it (`llms/cloudflare/common_utils.py`)."""
    spec = f"systemone:@cf/cloudflare/clef-omni,base_url={CLOUDFLARE}{end}"
    judge = opened(spec, dataset_of([], [], EMPATHY), dry_run=True)
    provider, pairs = judge.session.provider, make_pairs(1)
    assert provider._url + provider.route()[0] == f"{CLOUDFLARE}/ai/run/@cf/cloudflare/clef-omni"
    assert provider.request(judge.tasks(pairs)[0].build())["model"] == "clef-omni"
    assert judge.name == "systemone:@cf/cloudflare/clef-omni"
    assert "an-account" not in judge.name
    assert "estimate: $0.00 (prices as of" in disclosure(judge, planned(judge, pairs), 1)


def test_another_host_is_not_cloudflare(opened):
    for url in ("http://api.cloudflare.com", "https://api.cloudflare.com.evil.org", "https://evilapi.cloudflare.com.x"):
        assert opened(
            f"systemone:@cf/cloudflare/clef-omni,base_url={url}", dataset_of([], [], EMPATHY)
        ).session.provider.elsewhere


def test_an_answer_may_be_wrapped(scored):
    wrapped = {"result": systemone_answer(GIVEN), "success": True, "errors": [], "messages": []}
    found = scored(VENDOR, wrapped, settings=["samples=1", "price=1:1:0"])
    assert (found.row["score"], found.row["meta"]["cost"]) == (4, pytest.approx(420e-6))
    assert found.row["meta"]["versions"] == ["clef-omni-1"]


def counting(tokens: list[int]):
    left = list(tokens)
    return lambda request: Response(systemone_answer(GIVEN, usage={"input_tokens": left.pop(0)}))


@pytest.mark.parametrize(
    ("tokens", "seconds", "warned"),
    [
        ([300, 300, 300], [1.0, 4.0, 6.0], True),
        ([300, 375, 425], [1.0, 4.0, 6.0], False),
        ([300, 300, 300], [1.0, 1.5, 1.9], False),  # an encoder of windows
    ],
)
def test_a_server_that_seems_not_to_hear_is_warned_of_once(tokens, seconds, warned, scored, make_pairs, capsys):
    pairs = [replace(pair, response=clip(200, length)) for pair, length in zip(make_pairs(3), seconds, strict=True)]
    found = scored(VENDOR, counting(tokens), pairs=pairs, settings=["samples=1", "concurrency=1"])
    assert (found.table["status"] == OK).all()
    said = capsys.readouterr().err
    assert (
        "300 tokens for clips of 1.2 s and 4.2 s alike; the server may not hear them (clips=files" in said
    ) == warned
    assert said.count("may not hear") == warned


def test_a_server_without_counts_is_not_suspected(scored, make_pairs, capsys):
    pairs = [replace(pair, response=clip(200, length)) for pair, length in zip(make_pairs(2), (1, 5), strict=True)]
    scored(VENDOR, systemone_answer(GIVEN, usage={}), pairs=pairs)
    assert "may not hear" not in capsys.readouterr().err
