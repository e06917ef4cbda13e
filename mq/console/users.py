"""The users who are logged in: checks their keys at the brokers, and gives each user a view of the cluster."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import trio

from mq.client.admin import Admin
from mq.client.errors import BrokerError, ClientError
from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials
from mq.client.net.routes import LEADER_ID
from mq.console.tails import DEFAULT, TailLimits
from mq.console.watch import Watch

LOGIN_SECONDS: Final = 10.0


class LoginRefused(Exception):
    """The login failed. The message is for the login page."""


@dataclass(slots=True)
class _OpenUser:
    watch: Watch
    scope: trio.CancelScope
    sessions: int = 0


class Users:
    """The views of all users. A user's first session opens the view, and the last one closes it.

    Args:
        own: the settings for requests of the console itself, and of visitors who need not log in.
        nursery: ends after the server.
    """

    def __init__(
        self, namesrv: str, own: RemotingSettings, nursery: trio.Nursery, tail_limits: TailLimits = DEFAULT
    ) -> None:
        self._tail_limits = tail_limits
        self._namesrv = namesrv
        self._own = own
        self._nursery = nursery
        self._lock = trio.Lock()
        self._open: dict[Credentials | None, _OpenUser] = {}
        self._of_session: dict[str, Credentials | None] = {}

    async def enter(self, session: str, credentials: Credentials | None) -> None:
        """Begin a session of a user, or of the console itself without credentials."""
        async with self._lock:  # two sessions that begin at once see the same
            if credentials not in self._open:
                self._open[credentials] = await self._nursery.start(self._serve, credentials)
            self._open[credentials].sessions += 1
            self._of_session[session] = credentials

    def leave(self, session: str) -> None:
        """End a session. The last session of a user closes the user's view."""
        if session not in self._of_session:
            return
        credentials = self._of_session.pop(session)
        user = self._open.get(credentials)
        if user is None:
            return
        user.sessions -= 1
        if user.sessions == 0 and credentials is not None:
            del self._open[credentials]
            user.scope.cancel()

    def watch_of(self, session: str) -> Watch:
        """Return the view of the session's user."""
        return self._open[self._of_session[session]].watch

    async def _serve(
        self, credentials: Credentials | None, task_status: trio.TaskStatus[_OpenUser] = trio.TASK_STATUS_IGNORED
    ) -> None:
        remoting = self._own if credentials is None else replace(self._own, credentials=credentials)
        with trio.CancelScope() as scope:
            async with Watch.open(self._namesrv, remoting, self._tail_limits) as watch:
                task_status.started(_OpenUser(watch, scope))
                await trio.sleep_forever()

    async def check(self, credentials: Credentials) -> None:
        """Check that the brokers know these keys. Raises LoginRefused, also if they check no keys; ClientError.

        A broker without accounts accepts any signature, so it is asked with a wrong one, too.
        """
        wrong = Credentials(credentials.access_key, secrets.token_hex(16))
        with trio.move_on_after(LOGIN_SECONDS):
            if await self._is_known(credentials):
                if await self._is_known(wrong):
                    raise LoginRefused(
                        "the brokers do not check who sends requests: give them accounts (acl_file), or run the "
                        "console without login"
                    )
                return
            raise LoginRefused("the access key or the secret key is wrong")
        raise LoginRefused(f"the brokers did not answer within {LOGIN_SECONDS:g} s")

    async def _is_known(self, credentials: Credentials) -> bool:
        async with Admin(self._namesrv, remoting=replace(self._own, credentials=credentials)) as admin:
            info = await admin.cluster_info()
            addresses = [
                each.broker_addrs.get(LEADER_ID) or next(iter(each.broker_addrs.values()), None)
                for each in info.brokers.values()
            ]
            return await _is_answered(admin, filter(None, addresses))


async def _is_answered(admin: Admin, addresses: Iterable[str]) -> bool:
    """Whether a broker accepts a request that every account may send. Raises LoginRefused, ClientError."""
    failure: ClientError | None = None
    for address in addresses:
        try:
            await admin.broker_runtime(address)
        except BrokerError:
            return False
        except ClientError as error:
            failure = error
        else:
            return True
    if failure is not None:
        raise failure
    raise LoginRefused("no broker is registered at the name servers, so no user can be checked")
