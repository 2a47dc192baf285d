"""`python -m aisfs` is `aisfs`."""

from aisfs.cli import main

main()
