"""A judge in other forms than adapter and head: with its backbone in the folder, quantized, for `transformers`."""
