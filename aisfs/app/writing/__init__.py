"""What is on its way into the store: files that wait, and files that were never uploaded.

`write_back` is what a mount does with them, `recover` what `aisfs recover` does.
"""
