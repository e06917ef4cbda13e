"""Known bugs, each a patch to the production code, to measure what the simulation finds."""
