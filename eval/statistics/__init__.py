"""Statistics of agreement: pure functions on arrays, without audio and without models."""
