"""AIStore's HTTP requests and replies as plain values: what to send, and what an answer means.

Pure functions: no sockets, threads or waiting. A new request starts in `requests` (reading) or
`write_requests` (changing); a new reply of AIStore is read in `object_replies` or `listings`; a new
error name gets its meaning in `errors`.
"""
