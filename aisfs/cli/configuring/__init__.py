"""The configuration files on the command line: profiles of mounts, and `aisfs config`."""
