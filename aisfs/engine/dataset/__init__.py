"""Services for datasets: many shards as one tree, labels beside them, shards made of other shards."""
