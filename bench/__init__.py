"""Measurements, each run by hand: `python -m bench.<name>`."""
