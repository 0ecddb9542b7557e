"""Judges that keep the others honest: they know little of how a response fits its context, and anybody can have them.

`acoustic` hears delivery through a documented list of measures, and the recording, `probe` hears through a frozen
backbone, `regression` reads the words (and fits `acoustic`), those of `simple` hear nothing.
"""
