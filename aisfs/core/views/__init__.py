"""Views: which members of a shard or dataset are shown, and under which paths; and tars made of members.

A new view gets a function in `sample_views`, a name in `aisfs.settings.View` and its options in `spec`. It builds either
a `tree` for each shard (chosen in `aisfs.mount.services`) or one `merged` tree of all shards (chosen in
`aisfs.engine.dataset.merger`). A source of labels starts in `spec`, a rule for sample keys in `samples`.
`shuffled_tar` makes tars that are not stored; `packing` plans those of `aisfs pack`.
"""
