"""The counters and the health of a mount over HTTP. `endpoint` is the entrance."""
