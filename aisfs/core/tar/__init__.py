"""The tar format: a scanner that takes bytes in any split and adds rows to an index.

Another header type or dialect starts in `header` (bytes) and `member` (meaning); `scanner` only knows
where headers lie. `fast_path` must give the same rows as `scanner`, only faster. `sparse` reads the maps of
members stored without their holes.
"""
