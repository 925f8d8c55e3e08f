"""Members that come and go: failure detection, membership, recovery."""
