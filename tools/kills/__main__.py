"""Harms commands at many moments, and looks whether the same command goes on: ``python tools/kills HARM --help``.

Each module says what it does and what must hold: `train.py` kills one training again and again, `commands.py` harms
every command that writes, and `service.py` kills a service.
"""

from __future__ import annotations

import argparse
import sys

import service
import torch

import commands
import train

HARMS = {"train": train, "kill": commands, "full": commands, "readonly": commands, "serve": service}


def main() -> int:
    """1 if something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    harms = parser.add_subparsers(dest="harm", required=True)
    for name, module in HARMS.items():
        one = harms.add_parser(name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        one.add_argument("--moments", type=int, default=20)
        one.add_argument("--seed", type=int, default=0)
        module.add_options(one)
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fork has no threads of its parent
    return HARMS[given.harm].harm(given)


if __name__ == "__main__":
    sys.exit(main())
