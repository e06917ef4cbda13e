"""Programs as users of the SDK write them. They are checked, by mypy and pyright at their strictest, and never run."""
