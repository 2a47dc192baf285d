"""What `aisfs pack` reads: the files of a directory, or objects of a cluster."""
