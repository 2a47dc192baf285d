"""The operations that change something: create, write, commit, rename, set attributes."""
