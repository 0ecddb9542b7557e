"""The `empathy-judge` command."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType

from .commands import A_BUG, BAD_USAGE, FAILED_CHECKS, data, judges, measuring, tables, training
from .commands.doctor import Doctor
from .commands.options import Command, OneLineParser, did_you_mean, read, summary_and_more
from .core.errors import DEBUG, UserError, as_user_error, bug, lost_process
from .core.processes import listen, restore
from .core.quiet import silence_libraries
from .core.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Whatever happens, at most one line of it is an error.

    Returns:
        0 = done, 1 = checks failed, or another process of the run was lost, 2 = bad usage, bad input, or the machine
        refuses (one line on standard error), 70 = a bug (one line; with EMPATHY_JUDGE_DEBUG in the environment where it
        happened); as shells have it 130 = interrupted, 141 = nobody reads on. 75 = asked to stop: the same command
        goes on.
    """
    silence_libraries()
    _open_streams()
    # A shell starts programs in the background with SIGINT ignored; that is left as it is
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = listen(_interrupt, [signal.SIGINT] if is_usual else [])
    try:
        try:
            code = options_of(sys.argv[1:] if arguments is None else list(arguments)).run()
        except SystemExit as stopped:
            # rich answers a broken pipe with SystemExit(1)
            if isinstance(stopped.__context__, BrokenPipeError):
                return 141
            # The text of --help may still be in the buffer: a full disk is to be reported as for all other output
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        _close_output()
        return 141
    except Exception as error:
        if DEBUG in os.environ:
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is None and _output_is_full():
            error.filename = "standard output"
            _close_output()
        # Not code 2: torchrun and SLURM start a run again that lost a process, and not one that was called wrongly
        if lost_process(error):
            lost = UserError(f"another process of this run ended or does not answer ({error}); its own lines say why")
            print(f"error: {lost}", file=sys.stderr)
            return FAILED_CHECKS
        user_error = as_user_error(error)
        print(f"error: {bug(error) if user_error is None else user_error}", file=sys.stderr)
        return A_BUG if user_error is None else BAD_USAGE
    finally:
        restore(before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. During an import, where libraries swallow a `KeyboardInterrupt` or make another error of it, the program
    ends at once, as after a kill; what it has printed is kept."""
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename == "<frozen importlib._bootstrap>":
            with suppress(Exception):  # such as a broken pipe, or a print that the signal came into
                sys.stdout.flush()
            with suppress(OSError):
                os.write(2, b"interrupted\n")
            os._exit(130)
        outer = outer.f_back
    signal.default_int_handler(number, frame)


def options_of(words: Sequence[str]) -> Command:
    """The command that words say, to be run.

    Raises:
        UserError: If they say none.
    """
    if not words or words[0].startswith("-"):
        _parser().parse_args(words)  # help, version, or what is wrong
    name, *rest = words
    if name not in COMMANDS:
        raise UserError(f"{name}: no such command{did_you_mean(name, COMMANDS)}; see empathy-judge --help")
    # Settings of training are a tree, which jsonargparse reads; each source of `import` has options of its own
    if name == "train":
        return training.Train(rest)
    if name == "import":
        return data.read_import(rest)
    return read(name, COMMANDS[name], rest)


def _parser() -> OneLineParser:
    """The parser of what stands before a command: help and version."""
    parser = OneLineParser(
        prog="empathy-judge", description="Judge how a spoken response sounds for its context, and prove it."
    )
    parser.add_argument("--version", action="version", version=f"empathy-judge {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=summary_and_more(command).partition("\n")[0], add_help=False)
    return parser


def _open_streams() -> None:
    """Escape characters that a terminal cannot encode; a closed output (`>&-`) is replaced by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Otherwise the next opened file would get its descriptor, and the output with it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _output_is_full() -> bool:
    """Whether standard output caused the error: in that case, writing to it fails again."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")  # where Python has nothing in its buffer
    except io.UnsupportedOperation:  # no file at all
        return False
    except OSError:
        return True
    return False


def _close_output() -> None:
    """Redirect standard output to the null device: otherwise Python reports once more at exit what it cannot write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


COMMANDS: Mapping[str, type[Command]] = {
    "demo": training.Demo,
    "import": data.Import,
    "inspect": data.Inspect,
    "split": data.SplitData,
    "train": training.Train,
    "recipes": training.Recipes,
    "evaluate": measuring.Evaluate,
    "compare": measuring.Compare,
    "challenge": measuring.Challenge,
    "stress": measuring.Stress,
    "agreement": tables.Agreement,
    "plan": tables.Plan,
    "leaderboard": tables.Leaderboard,
    "score": judges.Score,
    "rank": judges.Rank,
    "explain": judges.Explain,
    "serve": judges.Serve,
    "calibrate": training.Calibrate,
    "export": training.Export,
    "ensemble": training.Ensemble,
    "doctor": Doctor,
}
"""By the names that they have on the command line."""


if __name__ == "__main__":
    sys.exit(main())
