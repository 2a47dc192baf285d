"""How sizes, times and progress look to a person: one style for all commands."""
