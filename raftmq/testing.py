"""The test kit: `mq.testing` under the name of its distribution. It comes with the extra ``raftmq[testing]``."""

try:
    import mq.testing
except ModuleNotFoundError as error:
    if error.name != "mq.testing":
        raise
    raise ImportError(
        "raftmq.testing runs real brokers, which are not installed: pip install 'raftmq[testing]'"
    ) from None

from mq.testing import *  # noqa: F403 - as in `raftmq`

__all__: list[str] = []
__all__ += mq.testing.__all__
