"""Known mistakes, each a patch to the production code: the simulation is worth what it finds of them."""
