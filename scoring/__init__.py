"""A judge on disk, its scores, and all that is said of them: for one pair, a batch, a job, a reward."""
