"""What is kept after it was fetched: bytes, member indexes, listings."""
