"""Losses: pure functions `(prediction, target, mask, ...) -> scalar`, one family per file.

What holds for all of them:

- Predictions and targets are in units of the scale: 0 is its lowest score, 1 its highest. The caller divides.
- The mask is a weight of at least 0 for every entry, or a bool. Targets where it is 0 may be NaN: they are never read.
- The result is the mean with these weights over all that counts. If nothing counts it is 0 with a gradient of 0, still
  part of the graph.
- The result has the dtype of the prediction: call them in float32, outside autocast.
- Shapes that differ are a `ValueError`: broadcasting would give a number and no error.
"""
