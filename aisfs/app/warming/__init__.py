"""`aisfs warm`: fills the disk cache ahead of training, through a mount or without one."""
