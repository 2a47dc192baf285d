"""`make demo`: from pictures to a training run over a mounted bucket, on this machine alone."""
