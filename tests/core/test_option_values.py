"""What the value of an option may be."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from empathy_judge.core import option_values as kinds


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (kinds.whole_number, {"1": 1, "1000000000000": 10**12}, ("0", "1000000000001", "1.5", "")),
        (kinds.random_seed, {"0": 0, "4294967295": 4294967295}, ("-1", "4294967296")),
        (kinds.process_count, {"1": 1, "1024": 1024}, ("0", "1025")),
        (kinds.port_number, {"0": 0, "65535": 65535}, ("-1", "65536")),
        (kinds.share, {"0": 0, "1": 1}, ("-0.001", "1.001", "nan", "half")),
        (kinds.any_number, {"-1e12": -1e12}, ("-1.1e12", "inf")),
        (kinds.split_name, {"all": None, "test": "test"}, ()),
        (kinds.device_name, {"auto": "auto", "cuda:1": "cuda:1"}, ("cuda:", "meta:0")),
        (kinds.output_folder, {}, ("", " ")),
    ],
)
def test_a_value_is_read_up_to_its_ends_and_refused_beyond(read, good, bad):
    assert {text: read(text) for text in good} == good
    for text in bad:
        with pytest.raises(ArgumentTypeError, match=f"^'{text}': expected "):
            read(text)
