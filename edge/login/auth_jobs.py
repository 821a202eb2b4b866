"""A bounded queue of logins that wait for one kind of job, fair by address.

A full queue drops the newest login of the address with most of them, so an address with many logins does not displace
one with few.
"""

from collections import OrderedDict
from collections.abc import Callable

from access.identity.chain import Ticket

__all__ = ["AuthJobs"]


class AuthJobs:
    """Logins that wait for one kind of job.

    Args:
        waiting_max: Largest number of queued logins; those with a running job do not count.
        came: Called for each queued login, to wake the shell.
    """

    def __init__(self, waiting_max: int, came: Callable[[], None] = lambda: None) -> None:
        self._waiting_max = waiting_max
        self.came = came
        self._by_address: OrderedDict[str, OrderedDict[int, Ticket]] = OrderedDict()  # the next address first
        self._addresses: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def put(self, number: int, ticket: Ticket) -> int | None:
        """Queue a login; return the number of the displaced login, None if the queue was not full.

        Args:
            number: Of its connection, which waits for at most one job.
            ticket: Of its chain.
        """
        address = ticket.credentials.address
        displaced = None
        if len(self._addresses) >= self._waiting_max:
            most = max(self._by_address, key=lambda each: len(self._by_address[each]))
            if len(self._by_address[most]) <= len(self._by_address.get(address, ())):
                return number
            displaced = next(reversed(self._by_address[most]))
            self.withdraw(displaced)
        self._by_address.setdefault(address, OrderedDict())[number] = ticket
        self._addresses[number] = address
        self.came()
        return displaced

    def take(self) -> tuple[int, Ticket] | None:
        """Return the next login, None if the queue is empty."""
        if not self._by_address:
            return None
        address, waiting = self._by_address.popitem(last=False)
        number, ticket = waiting.popitem(last=False)
        del self._addresses[number]
        if waiting:
            self._by_address[address] = waiting
        return number, ticket

    def withdraw(self, number: int) -> None:
        """Remove a login of a closed connection."""
        address = self._addresses.pop(number, None)
        if address is None:
            return
        waiting = self._by_address[address]
        del waiting[number]
        if not waiting:
            del self._by_address[address]
