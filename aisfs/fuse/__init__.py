"""The kernel's side: requests in, replies out."""
