"""Real processes under faults, their histories, and checkers of those histories."""
