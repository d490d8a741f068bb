"""What a rank waits for: calls of torch.distributed that have not ended, or that have failed."""

from allranks.agent.call_log import CallLog, Wait
from allranks.agent.clock import monotonic_ns

_POLLS = 3
"""Consecutive negative answers of a store from which on a rank counts as polling."""


class Waits:
    """Keeps what a rank waits for, and shows it to the supervisor.

    Calls are named by their order among all calls of the rank; 0 stands for anything else that other ranks do.

    Args:
        log: Where it is shown, also if the process ends without a word.
    """

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._began: dict[int, int] = {}
        self._elsewhere: list[int] = []  # one entry for each: two threads could lose one of a number
        self._failed: Wait | None = None
        self._newest = self._newest_at_failure = 0
        self._refusals = 0
        self._asks_since = 0

    @property
    def current(self) -> Wait | None:
        """What the rank waits for now, or has last waited for in vain; None for nothing.

        A rank that goes wrong now may do so for that, whatever its message, and whatever became of an exception.
        """
        if self._failed is not None:
            return self._failed
        if self._began:
            last = next(reversed(self._began))
            return Wait(last, _seconds_since(self._began[last]))
        return Wait(0, _seconds_since(self._asks_since)) if self._refusals >= _POLLS else None

    def begin(self, order: int, at: int) -> None:
        """The rank begins a call, or to wait for it, which ends when other ranks have made theirs."""
        self._newest = max(self._newest, order)
        self._began.pop(order, None)
        self._began[order] = at  # the last one: what the rank waits for now may be an earlier call
        self._log.note_wait(Wait(order))

    def begin_elsewhere(self) -> None:
        """The rank begins to wait for something else that other ranks do, until :meth:`end_elsewhere`."""
        self._elsewhere.append(0)
        self._log.note_wait(Wait())

    def end_elsewhere(self) -> None:
        """That wait has ended in some way."""
        self._elsewhere.pop()
        self._show_current()

    def succeed(self, order: int) -> None:
        """A call has ended, or a peer has answered: what has failed before it is over, too."""
        self._began.pop(order, None)
        if order == 0 or order > self._newest_at_failure:
            self.forgive()
        else:
            self._show_current()

    def fail(self, order: int, began: int) -> Wait:
        """A call, or a wait for it, has failed."""
        self._began.pop(order, None)
        self._failed = Wait(order, _seconds_since(began))
        self._newest_at_failure = self._newest
        self._show_current()
        return self._failed

    def forgive(self) -> None:
        """What has failed before counts no more: the test expects it, or a later wait has succeeded."""
        self._refusals = 0
        self._failed = None
        self._show_current()

    def refuse(self) -> None:
        """A store has given a negative answer."""
        self._asks_since = self._asks_since if self._refusals else monotonic_ns()
        self._refusals += 1
        self._show_current()

    def clear(self) -> None:
        """Forget everything: the test has ended."""
        self._began.clear()
        self._newest_at_failure = 0
        self.forgive()

    def _show_current(self) -> None:
        if self._elsewhere:
            self._log.note_wait(Wait())
        elif self._failed is None and self._began:
            self._log.note_wait(Wait(next(reversed(self._began))))
        else:
            self._log.note_wait(self.current)


def _seconds_since(at: int) -> float:
    return (monotonic_ns() - at) / 1e9
