"""What an archive in object storage costs, and how fast messages and log files come from it."""
