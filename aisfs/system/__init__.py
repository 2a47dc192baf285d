"""The process, apart from the file system: its start in the background, logs, locks, threads and memory."""
