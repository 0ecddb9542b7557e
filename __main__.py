"""`python -m empathy_judge`: the command where its script is not on the path."""

import sys

from .cli import main

if __name__ == "__main__":  # processes that are spawned import this file again
    sys.exit(main())
