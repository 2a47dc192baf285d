"""Sends requests to AIStore and bounds what comes back: connections, TLS, tokens, redirects, retries
of a proxy that is not ready.

`client` is the entrance. Only this package imports requests and urllib3.
"""
