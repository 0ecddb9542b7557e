"""Statistics of agreement: pure functions on arrays, without audio and without models.

Unless a function says otherwise, `score` (judge) and `human` are float64 of shape (n,) in rating points, for the same n
items, and an item with a NaN on either side is dropped and counted; `groups` has shape (n,) and names or numbers the
group of each item; a `table` holds the ratings of the n items, and `resamples` are draws over them. A result is an
`agreement.Statistic`: undefined, with the reason, where it cannot be computed.
"""
