"""Views: which members of a shard or dataset are shown, and under which paths.

A new view gets a module such as `flat_view`, a name in `aisfs.config.View` and its options in `spec`. It
builds a `directory_tree` for each shard, or one `merged` tree of all. A new label source starts in
`labels` and `class_view`, a new rule for sample keys in `samples`.
"""
