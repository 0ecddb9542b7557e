"""Sound: files of many formats made samples, and what is measured on them."""
