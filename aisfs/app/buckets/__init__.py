"""Buckets without a mount: what is in them, and new ones.

Enter through `contents` (`aisfs ls`), `creation` (`aisfs mb`) or `removal` (`aisfs rm`).
"""
