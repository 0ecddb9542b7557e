"""The page of a dataset: what is in it, how far its raters agree, and what is wrong with it."""
