"""Assigns layers to weight servers."""

from __future__ import annotations

from collections.abc import Sequence


def assign_layers(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The layers' numbers for each server, in order: the largest first, each to the server with the least load so far.

    The result is a function of the sizes alone. A server may have none if there are more servers than layers.

    Args:
        sizes: weights of each layer, in numbers.
        servers: how many there are.
    """
    shares: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for layer in sorted(range(len(sizes)), key=lambda layer: (-sizes[layer], layer)):
        # At the same load the one with fewer layers, so that layers without weights are spread too.
        least = min(range(servers), key=lambda server: (loads[server], len(shares[server]), server))
        shares[least].append(layer)
        loads[least] += sizes[layer]
    return [sorted(share) for share in shares]
