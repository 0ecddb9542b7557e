"""What `from empathy_judge import ...` gives, and that the package alone loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import empathy_judge
import pytest

PROGRAM = """
import sys
import empathy_judge
assert not {"torch", "pandas", "transformers"} & set(sys.modules)
from empathy_judge import train  # the package can be called, whoever imported it first
assert not {"torch", "pandas", "transformers"} & set(sys.modules)
from empathy_judge.train import run
assert empathy_judge.train is train
run.train = lambda config, **options: (config, options)
assert train("nano", data="folder") == ("nano", {"data": "folder"})
"""


@pytest.mark.parametrize("name", empathy_judge.__all__)
def test_every_public_name_is_there(name):
    found = getattr(empathy_judge, name)
    assert isinstance(found, str) or callable(found)


def test_another_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'scorers'"):
        _ = empathy_judge.scorers


def test_the_package_is_light_and_train_can_be_called():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
