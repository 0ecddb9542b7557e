"""What everything else stands on: errors, files, processes, and the version."""
