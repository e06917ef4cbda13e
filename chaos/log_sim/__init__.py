"""Groups of replicated logs in simulated time: the real consensus core and segment files under drawn faults."""
