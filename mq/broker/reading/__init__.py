"""Messages out of the log: pulled by queue and offset, or looked up."""
