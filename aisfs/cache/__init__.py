"""What was fetched and is kept for a while."""
