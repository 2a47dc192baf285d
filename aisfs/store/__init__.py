"""Where objects come from: the port, its decorators, and the stores without a protocol."""
