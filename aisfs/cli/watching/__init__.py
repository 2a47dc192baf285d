"""Commands that look at the state of mounts and of the machine they are on."""
