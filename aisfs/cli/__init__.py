"""The command line: each module parses the arguments of its commands, calls `aisfs.app` and prints.

A new command is a module here, named in the table of commands in `main`; its work goes to `aisfs.app`.
"""
