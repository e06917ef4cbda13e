"""Filter servers and the programs that they run for consumer groups."""
