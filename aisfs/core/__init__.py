"""Synchronous decisions without trio, sockets or threads: bytes and events in, values out.

Formats are read in `archive`, members are kept in `index`. What a mount shows is decided in `names` and `views`, what
it caches and reads ahead in `policy`. Most new features start here, with a property test.
"""
