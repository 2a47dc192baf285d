"""What the embedded server answers: one module for each group of AIStore's requests.

`aisfs.server.app` says which request goes where.
"""
