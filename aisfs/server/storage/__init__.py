"""How the embedded server keeps objects: plain files below one directory, records beside them."""
