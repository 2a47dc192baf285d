"""Names in directories: listings as the store gives them (`lister`), and this mount's own changes
over them (`overlay`).
"""
