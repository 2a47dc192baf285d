"""What concerns the process and nothing of the file system: going to the background, logs, memory,
file descriptors, permissions of new files.
"""
