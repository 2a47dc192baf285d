"""A local directory as a store, to read and to write."""
