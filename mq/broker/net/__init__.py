"""Connections of clients: frames in, handlers called, replies out, and limits on what one client may take."""
