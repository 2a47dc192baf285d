"""Views: which members of a shard or dataset are shown, and under which paths.

A new view gets a module, a name in `aisfs.settings.View` and its options in `spec`. It builds either a
`directory_tree` for each shard, as `samples_view` does (chosen in `aisfs.app.services`), or one `merged`
tree of all shards, as `flat_view` does (chosen in `aisfs.engine.dataset.merger`). A new label source
starts in `spec`, and continues in `labels` or `class_view`; a new rule for sample keys in `samples`.
"""
