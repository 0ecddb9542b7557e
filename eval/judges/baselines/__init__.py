"""Judges that keep the others honest: they know little of how a response fits its context, and anybody can have them.

`acoustic` hears delivery through a documented list of measures, `probe` through a frozen backbone, `text` reads the
words, `quality` hears the recording, those of `simple` hear nothing. `regression` fits `acoustic` and `text`.
"""
