"""What the commands do: builds a mount, an inspection, packing and warming out of the other packages.

`mount` is the composition root of the daemon; `source` chooses the store of a source, and `services`
opens the services that read it.
"""
