#!/usr/bin/env bash
# pandas.read_spss makes an unordered category of a labelled rating item, in the order of the alphabet; read_stata orders it by value.
#
# One would guess: the labels of a scale from an SPSS file (as Qualtrics exports it) come in the order of their values, as the same
#   table comes from a Stata file; an item with words at its two ends alone stays a column of numbers.
# What happens: the categories are sorted as text: "a little" < "clearly" < "fully" < "not at all" < "somewhat", and not ordered, so that
#   `.cat.codes` turns 5, 3, 1, 2, 4 into 2, 4, 3, 0, 1. With words at 1 and 5 alone the column mixes 2.0, 3.0, 4.0 with two texts, and
#   the codes put both ends above 4. `convert_categoricals=False` gives the numbers.
# Who meets it: whoever reads ratings of a survey and takes codes for levels, as regressions by formula and sklearn encoders do.
# Versions: pandas 3.1.1, pyreadstat 1.3.7, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyreadstat==1.3.7 numpy==2.4.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import pandas
import pyreadstat

print("pandas", pandas.__version__, "pyreadstat", version("pyreadstat"))
table = pandas.DataFrame({"warm": [5.0, 3, 1, 2, 4]})
words = {1: "not at all", 2: "a little", 3: "somewhat", 4: "clearly", 5: "fully"}
found = {}
for title, labels in (("words at all", words), ("words at the ends", {1: words[1], 5: words[5]})):
    pyreadstat.write_sav(table, "a.sav", variable_value_labels={"warm": labels})
    pyreadstat.write_dta(table, "a.dta", variable_value_labels={"warm": labels})
    for program, column in (("SPSS", pandas.read_spss("a.sav").warm), ("Stata", pandas.read_stata("a.dta").warm)):
        found[title, program] = column.cat.codes.tolist(), column.cat.ordered
        print(f"{title}, {program}: ordered {column.cat.ordered}, categories {column.cat.categories.tolist()}, codes of 5 3 1 2 4:", *column.cat.codes)
assert pandas.read_spss("a.sav", convert_categoricals=False).warm.tolist() == [5, 3, 1, 2, 4]
for title in ("words at all", "words at the ends"):
    assert found[title, "Stata"] == ([4, 2, 0, 1, 3], True), "Stata's are ordered otherwise now"
assert found["words at all", "SPSS"] == ([2, 4, 3, 0, 1], False), "SPSS's are ordered otherwise now"
assert found["words at the ends", "SPSS"] == ([3, 1, 4, 0, 2], False), "SPSS's are ordered otherwise now"
print("as found")
PYTHON
