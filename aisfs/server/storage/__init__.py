"""Storage of the embedded server: objects as plain files, with records in SQLite beside them.

`objects` is the interface for the handlers: buckets, commits, renames and deletes. A new metadata field
of objects or checksum type starts in `records`, a property of buckets in `bucket`, and a new way in which
AIStore loses data or names in `traps`.
"""
