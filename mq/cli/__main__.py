"""`python -m mq.cli` is `raftmq`."""

from mq.cli import main

if __name__ == "__main__":
    main()
