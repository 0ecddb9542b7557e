"""Options that several commands have, and what their values may be."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from inspect import cleandoc
from typing import Any

Command = Callable[[argparse.Namespace], int]
"""From its options to the exit code."""


def add_command(commands: Any, name: str, run: Mapping[str, Command], example: str) -> argparse.ArgumentParser:
    """A subcommand, whose help is the docstring of its function, and an example."""
    text = cleandoc(run[name].__doc__ or "")
    parser = commands.add_parser(name, help=text.splitlines()[0], description=text, epilog=f"example: {example}")
    parser.set_defaults(run=run[name])
    return parser


def add_data_option(one: argparse._ActionsContainer, required: bool = True) -> None:
    """`--data`."""
    one.add_argument("--data", required=required, help="folder of a pair dataset, or its address (hf://datasets/...)")


def add_device_options(one: argparse.ArgumentParser) -> None:
    """Where and how a backbone is loaded."""
    one.add_argument(
        "--device", help="cpu, cuda, ...; auto = all GPUs, then main memory (default: a GPU if there is one)"
    )
    one.add_argument("--backbone", help="where the backbone lies now, if not where the judge found it")
    one.add_argument(
        "--quantization", choices=["none", "nf4"],
        help="nf4 = language model in 4 bits, for small GPUs; scores change a little (default: as in training)",
    )  # fmt: skip


def add_cache_option(one: argparse.ArgumentParser) -> None:
    """`--cache`."""
    one.add_argument(
        "--cache", metavar="FOLDER",
        help="keep what the audio tower makes of clips here, for other commands and for training with "
        "--cache.folder (at most 100 GB; default: not kept)",
    )  # fmt: skip


def whole_number(text: str) -> int:
    """From 1 on; argparse shows the name of this function where a value is refused."""
    amount = int(text)
    if not 1 <= amount < 1e12:
        raise ValueError
    return amount


def seconds(text: str) -> float:
    """From 0 on."""
    amount = float(text)
    if not 0 <= amount < 1e6:
        raise ValueError
    return amount


def port_number(text: str) -> int:
    """Of TCP; 0 = any that is free."""
    port = int(text)
    if not 0 <= port < 2**16:
        raise ValueError
    return port


def dollars(text: str) -> float:
    """From 0 on."""
    amount = float(text)
    if not 0 <= amount < 1e9:
        raise ValueError
    return amount
