"""The process, apart from the file system: daemonizing, logs, memory, file descriptors, permissions
of new files.
"""
