"""Judges that keep the others honest: they know little of how a response fits its context, and anybody can have them.

`acoustic` hears delivery through a documented list of measures, `text` reads the words, `quality` hears the recording,
`random_scores` nothing, and `human` is one rater against the others. `acoustic` and `text` are fitted by `regression`.
"""
