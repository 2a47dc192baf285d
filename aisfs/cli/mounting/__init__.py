"""What `aisfs mount` is made of: its `-o` options and its start."""
