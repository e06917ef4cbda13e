"""Client connections: receive frames, call handlers, send responses, and limit what one client may use."""
