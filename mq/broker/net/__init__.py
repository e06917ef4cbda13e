"""Client connections: receive frames, call handlers, send replies, and limit what one client may use."""
