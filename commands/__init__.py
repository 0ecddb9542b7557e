"""What the `empathy-judge` command does: one function per command, and their options."""

DONE, FAILED_CHECKS, BAD_USAGE = 0, 1, 2
"""What a command exits with."""
