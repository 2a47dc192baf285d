"""The embedded AIStore-compatible server: one process, one directory, plain files as objects.

`aisfs.server.run.serve` runs it, `aisfs.server.app.make_app` is the bare WSGI application. It plays
proxy and target on one listener and knows nothing of the rest of the package but its errors.
"""
