"""`aisfs doctor`: what is wrong with this machine, this cluster and the mounts here, and how to mend it.

The entrance is `examination`. Nothing here changes anything.
"""
