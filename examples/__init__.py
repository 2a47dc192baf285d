"""Programs for training on a mount, which docs/recipes explain."""
