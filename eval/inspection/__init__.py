"""The page of a dataset: its contents, the agreement of its raters, and its problems."""
