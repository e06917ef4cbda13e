"""Known bugs, each a patch to the production code, to measure which bugs the simulation finds."""
