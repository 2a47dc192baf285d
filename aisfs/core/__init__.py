"""Synchronous decisions: bytes and events in, answers out. No trio, no sockets, no threads."""
