"""Writes in every way while the cluster fails, and reads every acknowledged byte back elsewhere."""
