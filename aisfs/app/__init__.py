"""What the commands do: builds a mount, an inspection, packing and warming out of the other packages.

`mount` is the composition root of the daemon; `services` opens the services that read a source.
"""
