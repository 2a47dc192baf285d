"""`aisfs csi`."""
