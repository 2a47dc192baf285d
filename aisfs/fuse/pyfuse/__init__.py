"""Requests as pyfuse3 has them: unpack one, call the file system, pack the answer.

Only this package touches pyfuse3. No decision is taken here. No exception leaves a handler except
FUSEError: anything else would end the session and with it the mount. Each failed request is logged
once, by `aisfs.fuse.fastpath.failures`.
"""
