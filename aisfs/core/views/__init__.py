"""Views: which members of a shard or dataset are shown, and under which paths.

One module for each view (`samples_view`, `class_view`, `flat_view`), on the tree of `directory_tree`.
A new view is named in `spec`; a new source of labels belongs in `labels`.
"""
