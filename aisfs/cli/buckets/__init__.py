"""Commands about buckets that need no mount."""
