"""Messages that consumers pop: hidden for a while, acknowledged one by one."""
