"""Many pairs scored into a file: read, shared by rank, written in parts, joined; on one machine, several, or Ray."""
