"""The program that PyInstaller freezes."""

import os
import sys

# It is set for us alone: sh, fusermount3 and setpriv take the system's libraries.
os.environ.pop("LD_LIBRARY_PATH", None)
if "LD_LIBRARY_PATH_ORIG" in os.environ:
    os.environ["LD_LIBRARY_PATH"] = os.environ.pop("LD_LIBRARY_PATH_ORIG")
# Where the bundle is, which is unpacked elsewhere for each version: what a keeper starts is what is installed by then.
sys.executable = os.environ.pop("_AISFS_PROGRAM", sys.executable)
if sys.argv[1:2] == ["keeper"]:  # as `aisfs.system.keeping` starts it: it has to stay small
    from aisfs.system.keeper import main
else:
    from aisfs.__main__ import main
main()
