"""Policies for messages whose handler failed. A handler raises one, or `on_error` maps exceptions to them.

    @consumer.on("Orders", on_error={ValueError: DeadLetter, ConnectionError: RetryLater(30)})
    async def bill(message: ReceivedMessage) -> None:
        if message.body == b"":
            raise Skip("an empty order")

A failure without a policy is retried as the consumer does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mq.client.application_code import failure_in
from mq.client.logs import log


class HandlingPolicy(Exception):
    """Base of the policies. A handler raises a policy to decide what happens to its message."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(HandlingPolicy):
    """Retry the message after at least `seconds`, above 0 and at most 7,200.

    With `ordered`, its queue waits, and the attempt counts for `max_reconsume_times`. With `ordered=False`, this member
    retries it itself for up to 30 s, `max_reconsume_times` times (default: 120). Then, as with a longer time, it is
    sent back to its broker with the next delay level, and any member may get it.
    """

    SECONDS_MAX = 7200.0

    def __init__(self, seconds: float, reason: str = "") -> None:
        if not 0 < seconds <= self.SECONDS_MAX:
            raise ValueError(f"RetryLater({seconds}): above 0 and at most {self.SECONDS_MAX:g} seconds are allowed")
        super().__init__(reason)
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.seconds:g}{f', {self.reason!r}' if self.reason else ''})"

    def __reduce__(self) -> tuple[type[RetryLater], tuple[float, str]]:
        return type(self), (self.seconds, self.reason)


class DeadLetter(HandlingPolicy):
    """Make the message a dead letter of the group at once. Until a broker has stored that, it is retried."""


class Skip(HandlingPolicy):
    """Treat the message as done, although it was not handled; `message_skipped` is logged."""


class StopConsumer(HandlingPolicy):
    """End `run`, as `stop` does, and raise the failure. The message is delivered again."""


Choice = HandlingPolicy | type[DeadLetter] | type[Skip] | type[StopConsumer]
OnError = Mapping[type[BaseException], Choice | Callable[[BaseException], Choice | None]]
"""Policies by exception; the policy of the nearest base class is used. A function gets the exception, and returns a
policy, or None for the usual retry.
"""


def check_policies(on_error: OnError | None) -> OnError:
    """Return the mapping, empty for None. Raises TypeError for a value that is not a policy."""
    policies: Mapping[Any, Any] = {} if on_error is None else on_error
    if not isinstance(policies, Mapping):
        raise TypeError(f"on_error has policies by exception, as {{Exception: Skip()}}, and is not {on_error!r}")
    for kind, choice in policies.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"on_error: {kind!r} is not a class of exceptions")
        if choice is RetryLater or choice is HandlingPolicy:
            raise TypeError(f"on_error for {kind.__name__}: say after how many seconds: RetryLater(seconds)")
        if not isinstance(choice, HandlingPolicy) and not callable(choice):
            raise TypeError(
                f"on_error for {kind.__name__}: {choice!r} is neither a policy nor a function that returns one"
            )
    return policies


def raised_policy(error: BaseException) -> HandlingPolicy | None:
    """Return the policy that a handler raised, alone or in a group; None if it raised anything else, too.

    A group has the policy of all its exceptions, if these are policies of one class, with equal retry times.
    """
    if isinstance(error, HandlingPolicy):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    policies = [raised_policy(each) for each in error.exceptions]
    first, *others = policies
    if first is None or any(type(each) is not type(first) or _seconds(each) != _seconds(first) for each in others):
        return None
    return first


def _seconds(policy: HandlingPolicy | None) -> float | None:
    return policy.seconds if isinstance(policy, RetryLater) else None


def policy_of(error: BaseException, *mappings: OnError) -> HandlingPolicy | None:
    """Return the policy for a failure: the raised one, or the first that the mapping has; None for the usual retry."""
    if isinstance(error, HandlingPolicy):
        return error
    for on_error in mappings:
        for kind in type(error).__mro__:
            if kind in on_error:
                return _policy_of(error, on_error[kind])
    return None


def _policy_of(
    error: BaseException, choice: Choice | Callable[[BaseException], Choice | None]
) -> HandlingPolicy | None:
    if isinstance(choice, HandlingPolicy):
        return choice
    choices: list[object] = []
    failure = failure_in(lambda each: choices.append(choice(each) if not isinstance(choice, type) else choice()), error)
    policy = choices[0] if choices else None
    if isinstance(policy, type) and issubclass(policy, DeadLetter | Skip | StopConsumer):
        policy = policy()
    if policy is None and failure is None:
        return None
    if isinstance(policy, HandlingPolicy):
        return policy
    failure = failure or TypeError(f"{choice!r} returned {policy!r}, which is not a policy")
    log.exception("on_error_failed", failure, exception=repr(error))
    return None
