"""Archives the log in object storage: see ``docs/archive.md``."""
