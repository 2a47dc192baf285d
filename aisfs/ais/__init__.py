"""AIStore over HTTP: wire, listings and failures (values), auth (the token), transport, client."""
