"""What this mount has written, or is changing: consulted before what the store says."""
