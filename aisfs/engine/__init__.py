"""Services that wait: they join the store, the caches and the decisions of core/."""
