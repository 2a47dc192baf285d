"""The command line: each module parses the words of its commands, calls `aisfs.app` and prints."""
