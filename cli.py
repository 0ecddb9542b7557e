"""The `empathy-judge` command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from .commands import BAD_USAGE, data, judges, making, measuring, training
from .commands.doctor import doctor
from .commands.options import build_parser
from .commands.shared_options import Command, did_you_mean
from .data_modules.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 = done, 1 = checks failed, 2 = bad usage or bad input (one line on standard error); as shells have it 130 =
        interrupted, 141 = nobody reads on.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["train"]:  # its options are those of recipes, known only once torch is loaded
            code = training.train(words[1:])
        elif words[:1] == ["import"]:  # each source has options of its own
            code = data.import_(words[1:])
        elif words and not words[0].startswith("-") and words[0] not in COMMANDS:
            raise UserError(f"{words[0]}: no such command{did_you_mean(words[0], NAMES)}; see empathy-judge --help")
        else:
            parsed = build_parser(COMMANDS).parse_args(words)
            parsed.command = shlex.join(["empathy-judge", *words])
            code = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough (`| head`); Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


COMMANDS: Mapping[str, Command] = {
    "demo": training.demo,
    "combine": data.combine,
    "inspect": data.inspect,
    "split": data.split,
    "recipes": training.recipes,
    "sweep": training.sweep,
    "upgrade": training.upgrade,
    "evaluate": measuring.evaluate,
    "compare": measuring.compare,
    "challenge": measuring.challenge,
    "agreement": measuring.agreement,
    "score": judges.score,
    "rank": judges.rank,
    "serve": judges.serve,
    "calibrate": making.calibrate,
    "export": making.export,
    "ensemble": making.ensemble,
    "doctor": doctor,
}
"""Beside `train` and `import`."""

NAMES = ("train", "import", *COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
