"""Who is connected, which group reads what, and how far it is."""
