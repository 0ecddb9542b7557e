"""Baselines for comparison with other judges: they know little of how a response fits its context.

`acoustic` uses a documented list of acoustic measures; `probe` a frozen backbone; `regression` the words (and fits
`acoustic`); the judges of `simple` use no audio.
"""
