"""The HTTP service of a judge."""
