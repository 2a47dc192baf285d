"""Stores members of shards into the kernel's page cache ahead of their readers."""
