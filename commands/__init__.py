"""What the `empathy-judge` command does: one function per command, and their options."""

DONE, FAILED_CHECKS, BAD_USAGE, A_BUG = 0, 1, 2, 70
"""What a command exits with; 70 is EX_SOFTWARE of sysexits.h."""
