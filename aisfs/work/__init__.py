"""What the commands do, besides mounting: a module for each of them, or for a few that belong together.

`mounts` looks at mounts from outside, `publishing` makes the indexes of `aisfs index`, `doctor` looks for what is wrong.
"""
