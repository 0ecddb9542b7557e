"""A judge on disk, its scores, and all that is said of them: for one pair, a batch, a job, a reward."""

KEPT_BYTES = 512 * 2**20
"""Of audio states that a scorer keeps in memory, by default."""
