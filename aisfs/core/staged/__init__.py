"""What is recorded of a file that is being written: its mode and times, and where it shall go."""
