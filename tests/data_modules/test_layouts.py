"""One reader for ratings of every layout: the same ratings, whoever wrote them down and how."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.importers import table
from empathy_judge.eval.frame import read_frame

from .builders import parsed

WANTED = {("a", "anna"): 1.0, ("a", "ben"): 2.5, ("b", "anna"): 3.0, ("c", "ben"): 5.0}
LONG = "item,annotator,dimension,score\na,anna,warmth,1\na,ben,warmth,2.5\nb,anna,warmth,3\nc,ben,warmth,5\n"


def found(*paths: Path | str, columns: dict[str, str] | None = None, dimension: str = "warmth", **how):
    rows = read_frame(paths, columns or {}, **how).rows.dropna(subset="score")
    assert {*rows["dimension"]} == {dimension}
    return {(row.pair_id, row.rater_id): row.score for row in rows.itertuples()}


def written(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (LONG, {}),
        (LONG.replace(",", ";").replace("2.5", "2,5"), {}),
        (LONG.replace(",", "|"), {}),
        (LONG.replace(",", "\t").replace("2.5", "2,5"), {}),
        (LONG.replace("item,annotator", "pair_id,rater_id"), {}),
        (LONG.replace("c,ben,warmth,5", "c,ben,warmth,5\nc,anna,warmth,NA\nd,anna,warmth,n/a"), {}),
        ("item,annotator,warmth\na,anna,1\na,ben,2.5\nb,anna,3\nc,ben,5\n", {"columns": {"score": "warmth"}}),
        ("item,annotator,note,warmth\na,anna,x,1\na,ben,,2.5\nb,anna,,3\nc,ben,,5\n", {"scores": ["warmth"]}),
        ("item,mean,warmth:anna,warmth:ben\na,1.75,1,2.5\nb,3,3,\nc,5,,5\n", {}),
        ("item,mean,anna,ben\na,1.75,1,2.5\nb,3,3,-\nc,5,,5\n", {"scores": ["anna", "b*"], "dimension": "score"}),
        ("annotator,age,a,b,c\nanna,30,1,3,\nben,40,2.5,,5\n", {"scores": ["[abc]"], "dimension": "score"}),
        ('"item; or clip";annotator;"how warm, overall?"\na;anna;1\na;ben;2,5\nb;anna;3\nc;ben;5\n',
         {"columns": {"item": "item; or clip", "score": "how warm, overall?"}, "dimension": "how warm, overall?"}),
    ],
)  # fmt: skip
def test_every_layout_gives_the_same_ratings(tmp_path, text, how):
    assert found(written(tmp_path, text), **how) == WANTED


def test_several_files_and_files_of_one_annotator(tmp_path):
    one = written(tmp_path, "\n".join(LONG.splitlines()[:3]), "one.csv")
    two = written(tmp_path, "\n".join([LONG.splitlines()[0], *LONG.splitlines()[3:]]), "two.csv")
    assert found(one, two) == WANTED
    with pytest.raises(
        DataError, match=r"one\.csv, row 1 .*anna scores item 'a' on warmth again, as in .*one\.csv, row 1"
    ):
        read_frame([one, one], {})
    anna = written(tmp_path, "item;score\na;1\nb;3\n", "anna.csv")
    ben = written(tmp_path, "item,score\na,2.5\nc,5\n", "ben.csv")
    assert found(f"anna={anna}", f"ben={ben}", dimension="score") == WANTED
    with pytest.raises(DataError, match=r"one\.csv: has a column 'annotator'; expected none, since all is by x"):
        read_frame([f"x={one}"], {})


def test_an_export_of_qualtrics(tmp_path):
    """A row for each person, a column for each question, and two rows under the header that are no answers."""
    ids = '"{""ImportId"":""_recordId""}","{""ImportId"":""QID1""}","{""ImportId"":""QID2""}"'
    head = f'ResponseId,Q1,Q2\nResponse ID,"How warm, 1?","How warm, 2?"\n{ids}\n'
    text = f"{head}R_1,Strongly agree,Disagree\nR_2,Agree,\nR_3,neither agree nor disagree,Strongly disagree\n"
    path = written(tmp_path, text)
    given = found(path, scores=["Q*"], dimension="score")
    assert given == found(path, columns={"annotator": "ResponseId"}, scores=["Q*"], dimension="score")
    one = {("Q1", "R_1"): 5.0, ("Q2", "R_1"): 2.0, ("Q1", "R_2"): 4.0}
    assert given == {**one, ("Q1", "R_3"): 3.0, ("Q2", "R_3"): 1.0}


def test_an_export_of_label_studio(tmp_path):
    result = [
        {"from_name": "warmth", "value": {"rating": 4}},
        {"from_name": "fit", "value": {"choices": ["good"]}},
        {"from_name": "better", "value": {"selected": "left"}},
    ]
    task = {"id": 7, "data": {"audio": "a.wav"}, "annotations": [{"completed_by": 3, "result": result}]}
    path = written(tmp_path, json.dumps([task]), "export.json")
    rows = read_frame(path, {}, choices={"good": 3.0}).rows
    assert rows[["pair_id", "rater_id", "dimension", "score"]].to_numpy().tolist() == [
        ["7", "3", "warmth", 4.0], ["7", "3", "fit", 3.0],
    ]  # fmt: skip
    with pytest.raises(
        DataError, match=r"task 7, annotation None, control 'fit': value 'good'; .*--choice 'good=NUMBER'"
    ):
        read_frame(path, {})


def test_all_names_in_other_capitals_are_named_at_once(tmp_path):
    text = LONG.replace("item,annotator,dimension,score", "Item,Annotator,dimension, score")
    wanted = "'item', 'annotator', 'score', a mapping --column 'item=Item' 'annotator=Annotator' 'score= score'"
    with pytest.raises(DataError, match=f"column 'Item', 'Annotator', ' score'; expected {wanted}, or another name"):
        read_frame(written(tmp_path, text), {})
    given = {"item": "Item", "annotator": "Annotator", "score": " score"}
    assert found(written(tmp_path, text), columns=given) == WANTED


def test_all_that_is_missing_is_named_at_once(tmp_path):
    path = written(tmp_path, "clip,anna,ben,note\nx,1,2,a\n")
    with pytest.raises(DataError) as error:
        read_frame(path, {})
    assert str(error.value) == (
        f"{path}: no column 'item', 'annotator', 'score'; it has 'clip', 'anna', 'ben', 'note'; expected --column "
        "item=COLUMN annotator=COLUMN score=COLUMN, or --scores 'anna' 'ben' for columns of scores; or, of published "
        "means, --column mean=COLUMN sd=COLUMN n=COLUMN"
    )
    assert found(path, columns={"item": "clip"}, scores=["anna", "ben"], dimension="score") == {
        ("x", "anna"): 1.0, ("x", "ben"): 2.0,
    }  # fmt: skip
    with pytest.raises(DataError, match=r"no column 'q\*' \(--scores\); it has 'clip'"):
        read_frame(path, {"item": "clip"}, ["q*"])


def test_several_files_are_imported_as_one(source):
    pairs = source.table("pairs.csv", source.pairs)
    half = len(source.ratings) // 2
    files = [source.table("one.csv", source.ratings[:half]), source.table("two.csv", source.ratings[half:])]
    options = parsed(table, ["--ratings", *map(str, files), "--dimension", "empathy=1:5:1"])
    ratings = table.read(pairs, options).ratings
    assert ratings is not None
    assert ratings["score"].tolist() == [float(row["score"]) for row in source.ratings]
    words = dict(zip(range(1, 6), ("Very poor", "poor", "fair", "good", "Excellent"), strict=True))
    in_words = [{**row, "score": words[row["score"]]} for row in source.ratings]
    options = parsed(table, ["--ratings", str(source.table("words.csv", in_words)), "--dimension", "empathy=1:5:1"])
    ratings = table.read(pairs, options).ratings
    assert ratings is not None
    assert ratings["score"].tolist() == [float(row["score"]) for row in source.ratings]


def test_the_one_word_that_is_none_of_the_scale_is_named(tmp_path):
    people = written(tmp_path, "item,anna,ben\na,never,rarely\nb,sometimes,oftn\nc,often,always\n")
    with pytest.raises(DataError, match=r"row 2 \(line 3\), column 'ben': value 'oftn'; .*--choice 'oftn=NUMBER'$"):
        read_frame(people, {}, ["anna", "ben"])


def test_ratings_in_columns_and_a_judge_in_a_file_of_its_own(tmp_path):
    people = written(tmp_path, "clip,rater1,rater2\na,1,2\nb,3,\n", "people.csv")
    one = written(tmp_path, "item,score\na,1.5\nb,2.5\n", "gpt.csv")
    wide = written(tmp_path, "clip,gpt\na,1.5\nb,2.5\n", "wide.csv")
    wanted = {("a", "rater1"): 1.0, ("a", "rater2"): 2.0, ("b", "rater1"): 3.0, ("a", "gpt"): 1.5, ("b", "gpt"): 2.5}
    columns = {"item": "clip"}
    assert found(people, f"gpt={one}", columns=columns, scores=["rater*"], dimension="score") == wanted
    assert found(people, wide, columns=columns, scores=["rater*", "gpt"], dimension="score") == wanted
    with pytest.raises(DataError, match=r"people.csv: no column 'judge' \(--scores\)"):
        read_frame([people, wide], columns, ["rater*", "judge"])
    for their in ("file", "gp*"):  # a mapped name is no pattern
        with pytest.raises(DataError, match=rf"people.csv: no column '{re.escape(their)}' \(mapped to item\)"):
            read_frame([people, wide], {"item": their}, ["rater*", "gpt"])
