"""`python -m empathy_judge`, and the script `empathy-judge`."""

import sys


def main() -> int:
    """Run the command."""
    try:
        from .cli import main as command
    except KeyboardInterrupt:  # as in `command`, which is not there yet
        print("interrupted", file=sys.stderr)
        return 130
    return command()


if __name__ == "__main__":  # processes that are spawned import this file again
    sys.exit(main())
