"""Has the network of this node disturbed as ``--network`` decides, while a test runs.

It is a plugin of the session that ranks are forked from. The first rank of each node asks the helper beside its
container, which has the privilege that no rank has (:mod:`allranks.network_helper`).
"""

import json
import os
import socket
import sys
from collections.abc import Generator
from typing import Any

import pytest

from allranks.harness.config import AgentConfig
from allranks.harness.ranks.skewed_calls import DELAYS, SkewedCalls
from allranks.network_helper import ADDRESS
from allranks.network_skew import disturbances, links
from allranks.skew import OFF

_PATIENCE = 10.0
"""Seconds for an answer, which takes less than a millisecond."""


def register_skew(session: pytest.Config, config: AgentConfig) -> None:
    """Register the plugins that skew the tests of a job, as it asks for."""
    if (stress := config.stress) is None:
        return
    if stress.skew != OFF:
        session.pluginmanager.register(SkewedCalls(), DELAYS)
    if stress.network != OFF:
        session.pluginmanager.register(DisturbedNetwork(config, stress.network), "allranks-network")


class DisturbedNetwork:
    """Disturbs the network while a rank's tests run; a test whose network cannot be disturbed is an error.

    Args:
        config: The job's, on this node.
        network: How.
    """

    def __init__(self, config: AgentConfig, network: str) -> None:
        self._config = config
        self._network = network
        self._connection: socket.socket | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Disturb the network from the beginning of a test to its end."""
        place = os.environ.get("LOCAL_RANK")
        if place is None:
            msg = "--network disturbs connections between nodes, and this test starts its ranks on one: leave it out"
            raise RuntimeError(msg)
        if place != "0":
            return (yield)
        seed = int(os.environ["ALLRANKS_SEED"])
        found = disturbances(self._network, seed, self._config.nodes)
        self._ask(links(self._network, seed, found, self._config.node))
        for each in found:
            sys.stderr.write(f"--network: {each.words}\n")
        try:
            return (yield)
        finally:
            for peer, (packets, hit) in self._ask({}).items():
                sys.stderr.write(f"--network: {hit} of {packets} packets from node {peer} were disturbed\n")

    def _ask(self, terms: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
        """Set disturbances; the counts of those until now.

        Raises:
            RuntimeError: The helper does not answer.
        """
        try:
            if self._connection is None:
                self._connection = socket.create_connection(ADDRESS, timeout=_PATIENCE)
            self._connection.sendall(json.dumps(terms).encode())
            answer = self._connection.recv(1 << 16)
            if not answer:
                raise ConnectionResetError
            counts: dict[str, list[int]] = json.loads(answer)
        except OSError as error:
            msg = f"--network: the helper that disturbs the network of node {self._config.node} is gone: {error}"
            raise RuntimeError(msg) from error
        return counts
