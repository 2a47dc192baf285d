"""What the command line says about itself: `--help` in groups, examples, completion in shells.

The entrance is `documented`: the class of every command.
"""
