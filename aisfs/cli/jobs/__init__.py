"""Commands about jobs that the cluster runs."""
