"""The broker: serves clients from a replicated log."""
