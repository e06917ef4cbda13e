"""Which messages a consumer wants: tag expressions and SQL92 expressions over message properties."""
