"""The command line: each module parses the arguments of its commands, calls `aisfs.app` and prints.

A new command is a module here, named in the table of commands in `main`; its work goes to `aisfs.app`. What takes
long to import is imported by the function that needs it: completion loads the module, and a person waits for it.
"""
