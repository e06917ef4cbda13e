"""The contents of pages: values from the answers of servers. Pure."""
