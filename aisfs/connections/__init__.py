"""HTTP messages over connections that can be cut off from outside, with bounds on what comes back.

For every store that speaks HTTP. `connection_pool` is the entrance. Only this package imports requests
and urllib3.
"""
