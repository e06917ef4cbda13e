"""Filters messages for consumers, by tag expressions and by SQL92 expressions over message properties."""
