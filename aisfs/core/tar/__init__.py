"""The tar format: a scanner that takes bytes in any split and returns members."""
