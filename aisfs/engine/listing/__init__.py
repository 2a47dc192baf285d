"""Names in directories: listings of the store (`lister`), and this mount's own changes
over them (`overlay`).
"""
