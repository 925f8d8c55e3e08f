"""Files that are either complete or absent, and one process at a time on each."""
