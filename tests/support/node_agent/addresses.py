"""Loopback addresses for the node and its pods: one /16 of 127.0.0.0/8 per agent.

The first address is the node's own. Pods get the next ones round-robin, so that an address is not given to another
pod while clients may still remember its former owner; a pod met again after a restart keeps its own.

Agents that know nothing of each other share a machine, and two pods at one address would take each other's ports. So
a range is *claimed*: by listening on LOG_PORT of its first address, which only one process at a time can do.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

LOG_PORT = 10250
"""Where a kubelet serves logs."""

BASES = tuple(f"127.{second}" for second in range(32, 96))
"""What an agent chooses from when it is not told."""


class AddressesExhaustedError(RuntimeError):
    """Every address of the range is given out."""


class AddressesClaimedError(RuntimeError):
    """Other agents hold the ranges."""


def claim(bases: Iterable[str]) -> tuple[str, socket.socket]:
    """The first base of which no other agent makes use, and the listening socket that holds it."""
    tried = list(bases)
    for base in tried:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((Addresses(base).node, LOG_PORT))
            listener.listen()
        except OSError:
            listener.close()
        else:
            return base, listener
    raise AddressesClaimedError(
        f"port {LOG_PORT} of the first address is in use for all of {', '.join(tried)}; "
        "stop the node agent that runs there or give another address base"
    )


class Addresses:
    """`base` is the first two octets of the range, as in "127.32"."""

    def __init__(self, base: str) -> None:
        network = ipaddress.ip_network(f"{base}.0.0/16")
        if not network.is_loopback:
            raise ValueError(f"the address base is {base}; give two octets within 127.0.0.0/8, such as 127.32")
        self._network = network
        self.node = str(network[1])
        self._taken = {self.node}
        self._next = 2

    def take(self, preferred: str | None = None) -> str:
        """A free address; the preferred one if it is free and in the range."""
        if preferred and preferred not in self._taken and self._contains(preferred):
            self._taken.add(preferred)
            return preferred
        for _ in range(self._network.num_addresses - 3):
            candidate = str(self._network[self._next])
            self._next = self._next + 1 if self._next < self._network.num_addresses - 2 else 2
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
        raise AddressesExhaustedError(f"all addresses of {self._network} are in use; delete pods")

    def release(self, address: str) -> None:
        self._taken.discard(address)

    def _contains(self, address: str) -> bool:
        return ipaddress.ip_address(address) in self._network
