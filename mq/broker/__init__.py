"""The broker: what clients ask for, on top of a replicated log."""
