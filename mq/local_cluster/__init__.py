"""Runs servers on this machine as child processes: starts, watches, kills and stops them, for any program.

`Processes` has children of any kind, `DevCluster` a name server and a broker group, `open_groups` several groups.
"""

from mq.local_cluster.cluster import DevCluster
from mq.local_cluster.groups import open_groups
from mq.local_cluster.port_reservation import HOST
from mq.local_cluster.ports import Ports
from mq.local_cluster.processes import Processes, ServersFailed, open_processes

__all__ = ["HOST", "DevCluster", "Ports", "Processes", "ServersFailed", "open_groups", "open_processes"]
