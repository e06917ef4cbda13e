"""Real processes under faults, their histories, and what checks those histories."""
