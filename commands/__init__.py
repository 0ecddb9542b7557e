"""What the `empathy-judge` command does: a dataclass for each command, whose fields are its options."""

DONE, FAILED_CHECKS, BAD_USAGE, A_BUG = 0, 1, 2, 70
"""Exit codes of commands; 70 is EX_SOFTWARE of sysexits.h."""
