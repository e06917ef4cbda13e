"""The test kit: real brokers, a name server and the SDK in a test's process.

Applications import it as `raftmq.testing`; `docs/testing.md` shows how. The servers are the ones of production. Three
things around them are others: connections are pairs of sockets (`network`), the log is written at once and without
syncs (`machine`), and the clock of the brokers is put ahead when a test says so (`clock`).
"""

from mq.testing.faults import Faults
from mq.testing.kit import Kit, SyncKit, open_kit, running_kit
from mq.testing.pending import Pending
from mq.testing.processes import ServerProcesses, running_processes

__all__ = ["Faults", "Kit", "Pending", "ServerProcesses", "SyncKit", "open_kit", "running_kit", "running_processes"]
