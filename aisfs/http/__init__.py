"""HTTP messages over connections that can be cut off from outside, with bounds on what comes back.

For every store that speaks HTTP. `connections` is the entrance: it runs work in threads, each on connections of its
own; `exchange` is one request and its reply. Only this package imports requests and urllib3.
"""
