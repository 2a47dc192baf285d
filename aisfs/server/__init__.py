"""The embedded AIStore-compatible server: one process, one directory, plain files as objects.

`aisfs.server.run.serve` runs it, `aisfs.server.app.make_app` returns the bare WSGI application, and the
replies are in `api`. It plays proxy and target on one listener. It imports nothing else of aisfs but
`errors` and `openat2`.
"""
