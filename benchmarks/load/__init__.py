"""Load on servers: a closed loop, an open loop, and dialogues of several requests, each as a process of its own."""
