#!/usr/bin/env bash
# pandas.read_csv(sep=None) reads a question with a line break as a row of its own, and cuts a table of one column at a letter of its name.
#
# One would guess: `sep=None` with the Python engine finds the separator of a table of ratings and changes nothing else: quoted names are
#   read as with the separator given, and a table of one column, which has none, is one column.
# What happens: the separator is guessed (csv.Sniffer) from the first physical line, which is then parsed apart from the rest. A quoted
#   question that goes on in a second line ends at the line break: the rest of it becomes the first row, so that ids are texts and the
#   ratings begin with NaN; a comma within it beats the semicolons between the columns. `score` over 4, 5, 3 becomes the columns
#   "Unnamed: 0" and "core", `rating` becomes "ra" and "ing". No warning. With sep=";" or the C engine all of them are right; DuckDB's
#   read_csv, which also guesses, reads all of them right.
# Who meets it: whoever reads exports of survey tools, where the question is the name of the column, without saying the separator.
# Versions: pandas 3.1.1, numpy 2.4.6, DuckDB 2.0.1; source: `_make_reader` in pandas/io/parsers/python_parser.py; found in a run, 2026-11-29.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6 duckdb==2.0.1 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import pandas

print("pandas", pandas.__version__, "DuckDB", duckdb.__version__)
TABLES = {
    "two lines": 'id;"How warm is it?\nThink of the voice."\n1;4\n2;5\n3;3\n',
    "two lines and a comma": 'id;"Warm, or not?\nThink of the voice."\n1;4\n2;5\n3;3\n',
    "one column": "score\n4\n5\n3\n",
}
guessed, ratings = {}, {}
for name, text in TABLES.items():
    with open("table.csv", "w", newline="") as file:
        file.write(text)
    guessed[name] = pandas.read_csv("table.csv", sep=None, engine="python")
    given = pandas.read_csv("table.csv", sep=";", engine="python")
    print(f"{name}: columns {list(guessed[name])}, first row {guessed[name].iloc[0].tolist()}; with sep=';' {list(given)}, {given.iloc[0].tolist()}")
    ratings[name] = guessed[name].iloc[:, -1].tolist()
    assert given.iloc[:, -1].tolist() == [4, 5, 3], "a separator that is given is read otherwise now"
    rows = duckdb.execute("select * from read_csv('table.csv')").fetchall()
    assert [row[-1] for row in rows] == [4, 5, 3], "DuckDB reads it otherwise now"
assert str(ratings["two lines"]) == "[nan, 4.0, 5.0, 3.0]", "the line break is read otherwise now"
assert list(guessed["two lines and a comma"]) == ['id;"Warm', " or not?"], "the comma no longer wins"
assert list(guessed["one column"]) == ["Unnamed: 0", "core"], "one column is no longer cut"
print("as found")
PYTHON
