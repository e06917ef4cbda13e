"""Messages as they are stored and sent: records, batches, and the meaning of their properties."""
