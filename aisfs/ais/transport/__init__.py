"""Sends requests to AIStore: tokens, redirects, retries of a proxy that is not ready.

`client` is the entrance; connections are those of `aisfs.http`.
"""
