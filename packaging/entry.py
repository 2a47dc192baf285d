"""The program that PyInstaller freezes."""

import os

from aisfs.__main__ import main

# It is set for us alone: sh, fusermount3 and setpriv take the system's libraries.
os.environ.pop("LD_LIBRARY_PATH", None)
if "LD_LIBRARY_PATH_ORIG" in os.environ:
    os.environ["LD_LIBRARY_PATH"] = os.environ.pop("LD_LIBRARY_PATH_ORIG")
main()
