"""The replies of the embedded server: one module for each group of AIStore's requests.

`aisfs.server.app` routes requests to these modules. A new reply starts in the module of its group, with
errors from `aisfs.server.failures`, and is checked against recordings of a real cluster in
`tests/server`.
"""
