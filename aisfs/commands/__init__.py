"""The command line: each module parses the arguments of its commands, calls `aisfs.work` and prints.

A new command is a function in a module here, named in the table of commands in `main`. What takes long to import
is imported by the function that needs it: completion loads the module, and a person waits for it.
"""
