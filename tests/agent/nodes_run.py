"""A job on two nodes: two agents on one small suite of a test's own, the second following the first."""

import contextlib
import os
from dataclasses import replace

from agent_run import AgentRun

from allranks.engines.agents import collect_results, reserve_rendezvous


class Storied(AgentRun):
    """An agent with all of its output in one text."""

    @property
    def story(self):
        return "\n".join([self.log, *map(str, self.records)])


class NodesRun(Storied):
    """The lead agent, and with it the whole job.

    Attributes:
        follower: The agent of node 1.
        home: The results of both, when :meth:`come_home` has put them together.
    """

    def __init__(self, folder, files, launch, *, follower=(), **changes):
        self.rendezvous = reserve_rendezvous()
        self.home = folder / "home"
        self._launch = launch
        changes = {"world_size": 4, "nodes": 2, **changes}
        changes["limits"] = {"assembly": 20, "silence": 3, **changes.get("limits", {})}
        super().__init__(folder, files, launch, **changes)
        self.follower = None
        if follower is not None:
            self.add_follower(**dict(follower))

    def _start(self, launch, environment, closed_stdin):
        self.config = self.rendezvous.agent_config(self.config, 0)
        (self.folder / "config.json").write_text(self.config.to_json())
        super()._start(launch, environment, closed_stdin)

    def add_follower(self, **options):
        self.follower = FollowerRun(self, self._launch, options)

    @property
    def port(self):
        return self.config.node_config.port

    def finish(self):
        """The exit status of both, when they have ended."""
        return self.wait(), self.follower.wait()

    def come_home(self):
        """Put the results of both into one folder, as the engine and the run do."""
        self.home.mkdir()
        with contextlib.suppress(FileNotFoundError):
            collect_results([self.results, self.follower.results], self.home)
        self.results = self.home
        return self

    def messages(self, test):
        """What arrived of each rank of a test: its outcome and message."""
        return {end.rank: (end.outcome, end.message) for end in self.arrived(test)}

    def ranks_of_node(self, node):
        """The process ids of a node's ranks in the last gang."""
        return self.gangs()[-1][node * 2 : node * 2 + 2]

    def close(self):
        if self.follower is not None:
            self.follower.close()
        self.rendezvous.close()
        super().close()


class FollowerRun(Storied):
    """The agent of node 1: it shares the leader's code and its shared folder."""

    def __init__(self, leader, launch, options):
        self.folder = leader.folder / "node-1"
        self.results = self.folder / "results"
        self.results.mkdir(parents=True)
        for name in ("code", "shared", "words"):
            (self.folder / name).symlink_to(leader.folder / name)
        rendezvous = options.pop("rendezvous", leader.rendezvous)
        environment = options.pop("environment", {})
        self.config = rendezvous.agent_config(replace(leader.config, node_config=None, **options), 1)
        (self.folder / "config.json").write_text(self.config.to_json())
        self._words = os.open(os.devnull, os.O_RDONLY)
        self._start(launch, environment, closed_stdin=False)
