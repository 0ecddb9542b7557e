"""What everything else stands on: errors, files, processes, numbers as people write them."""
