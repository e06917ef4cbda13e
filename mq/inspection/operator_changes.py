"""Changes that operators make, for which the application's `Admin` has no methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.client.errors import NoRoute
from mq.client.produce.recall import recall
from mq.client.users import UserAdmin
from mq.protocol.codes import RequestCode
from mq.protocol.requests.settings_text import encode_properties
from mq.protocol.requests.transactions import ResumeCheckHalfMessageExt

OPERATOR: Final = "raftmq_console"
"""The producer group of messages that an operator sends or recalls by hand."""
RECALL_SECONDS: Final = 10.0


class ChangingAdmin(UserAdmin):
    """An `Admin` for changes that operators make by hand. It needs an answer from every broker group."""

    async def recall(self, handle: str) -> str:
        """Recall the timed message of a handle, and return the message's id.

        Raises MessageRefused for a text that is not a handle, NotRecalled if the message was delivered or recalled, and
        ClientError.
        """
        return await recall(self._open_core(), OPERATOR, handle, seconds=RECALL_SECONDS)

    async def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of one running broker until it restarts (request code 25): all of them, or none.

        Raises BrokerError for a setting that does not exist, cannot be changed, or has a bad value.
        """
        body = encode_properties(settings)
        await self._open_core().call(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def resume_transaction(self, broker: str, offset_message_id: str) -> None:
        """Make a broker check a transaction again that was given up (request code 323). May be repeated.

        Raises BrokerError if there is no such message, NoRoute if the broker group has no leader.
        """
        address = (await self._leaders(None, broker)).get(broker)
        if address is None:
            raise NoRoute("", f"broker group {broker} has no leader")
        ext = ResumeCheckHalfMessageExt(message_id=offset_message_id)
        await self._open_core().call(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, ext.fields())
