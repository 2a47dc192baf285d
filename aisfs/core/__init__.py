"""Synchronous decisions without trio, sockets or threads: bytes and events in, values out.

Formats are read in `tar`, `zip` and `archive`, and members are kept in `index`. What a mount shows is
decided in `namespace` and `views`, what it caches and reads ahead in `policy`. `synthetic` makes tars
that nobody stored. Most new features start here, with a property test.
"""
