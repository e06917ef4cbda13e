"""Load generators as separate processes: a closed loop, an open loop, and dialogues of several requests."""
