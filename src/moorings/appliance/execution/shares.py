"""Which weight server keeps which layers."""

from __future__ import annotations

from collections.abc import Sequence


def assign_layers(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The layers' numbers for each server, in order: the largest first, each to the server that has least so far.

    The result is a function of the sizes alone. A server may have none: then there are more servers than layers.

    Args:
        sizes: of the layers, in numbers.
        servers: how many there are.
    """
    shares: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for layer in sorted(range(len(sizes)), key=lambda layer: (-sizes[layer], layer)):
        # Of equals the one with fewer layers, so that layers without weights go round too.
        least = min(range(servers), key=lambda server: (loads[server], len(shares[server]), server))
        shares[least].append(layer)
        loads[least] += sizes[layer]
    return [sorted(share) for share in shares]
