"""Buckets without a mount: what is in them, and new ones.

Enter through `contents` (`aisfs ls`) or `creation` (`aisfs mb`).
"""
