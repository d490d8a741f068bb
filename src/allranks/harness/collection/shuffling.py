"""An order of tests that is drawn by a number: what passes only after another test fails in some of them."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def shuffled(items: "Sequence[pytest.Item]", seed: int) -> "list[pytest.Item]":
    """The tests in another order, those of a file and of a class together.

    Each has a place that depends on the seed and on its name alone, so that a few of them keep the order that they had
    among all.
    """
    return sorted(items, key=lambda item: _place(item, seed))


def _place(item: "pytest.Item", seed: int) -> list[str]:
    return [drawn(seed, node.nodeid) for node in item.listchain() if node.nodeid]


def drawn(seed: int, name: str) -> str:
    """What things of these names are sorted by."""
    return hashlib.sha256(f"{seed} {name}".encode(errors="surrogatepass")).hexdigest()
