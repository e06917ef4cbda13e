"""Messages as they are stored and sent: records, batches, and what their properties mean."""
