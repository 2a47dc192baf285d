"""The zip format: its central directory and one entry of it."""
