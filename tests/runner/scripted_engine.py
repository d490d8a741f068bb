"""An engine whose jobs follow a script."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

from allranks.engines.base import Engine, JobExit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import SCHEMA, Begun, Collected, Finished, Interrupted, Passed, RankEnded
from allranks.runner.job_facts import JobFacts

BEGUN = Begun(schema=SCHEMA)
COLLECTED = Collected(tests=("t",), deselected=1)
PASSED = Passed(nodeid="t", ranks=(0,), arrived=(2.0,), seconds=(0.5,), world_size=1)
FINISHED = Finished(status=0)
PASSING = (COLLECTED, PASSED, FINISHED)


def facts_of(records):
    """The facts of a job with these records."""
    facts = JobFacts()
    for record in records:
        facts.take(record)
    return facts


def failed(nodeid, rank=0, message="", *, outcome=Outcome.FAILED, world_size=None, **more):
    """The record of a rank that has not passed; the default world size is just large enough."""
    size = rank + 1 if world_size is None else world_size
    return RankEnded(nodeid=nodeid, rank=rank, outcome=outcome, world_size=size, arrived=2.0, message=message, **more)


class StandIn(Engine):
    """The base of fake engines that are passed directly to a host: never detected, prepared or cleaned up."""

    @classmethod
    def detect(cls, *, is_requested):
        raise NotImplementedError

    def prepare(self, matrix, progress, uses):
        raise NotImplementedError

    def clean_up(self, *, is_dry_run=False):
        raise NotImplementedError


@dataclass
class ScriptedEngine(StandIn):
    """An engine that logs its calls and follows a script for each cell.

    Attributes:
        records: The records of a cell's job after Begun.
        failures: Exceptions of steps of a cell's job, such as ``("start", "gloo-w1-g0-env")``.
        acts: Functions to call at steps of a cell's job.
        endless: Cells whose jobs end only when they are stopped.
        orphans: Cells whose jobs an earlier orchestrator started.
        no_leases: The error of leasing GPUs.
    """

    log: list = field(default_factory=list)
    specs: dict = field(default_factory=dict)
    records: dict = field(default_factory=dict)
    failures: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    acts: dict = field(default_factory=dict)
    endless: set = field(default_factory=set)
    orphans: set = field(default_factory=set)
    no_leases: Exception | None = None
    has_queue: bool = False
    name: str = "scripted"

    def note(self, step, cell):
        self.log.append(f"{step} {cell}")
        if (step, cell) in self.acts:
            self.acts[step, cell]()
        if (step, cell) in self.failures:
            raise self.failures[step, cell]

    @contextmanager
    def start(self, spec, held=()):
        cell = spec.agent.cell
        self.specs[cell] = (spec, tuple(held))
        self.note("start", cell)
        try:
            yield ScriptedJob(self, cell)
        finally:
            self.note("close", cell)

    def adopt(self, spec):
        self.note("adopt", spec.agent.cell)
        return self.start(spec) if spec.agent.cell in self.orphans else None

    def check_leases(self):
        if self.no_leases is not None:
            raise self.no_leases

    def evict(self, gpus):
        self.log.append(f"evict {','.join(gpus)}")


@dataclass
class ScriptedJob:
    engine: ScriptedEngine
    cell: str
    stopped: threading.Event = field(default_factory=threading.Event)

    def request_stop(self):
        self.stopped.set()

    def go(self):
        self.engine.note("go", self.cell)

    def wait(self, sink):
        is_endless = self.cell in self.engine.endless
        for record in (BEGUN, *self.engine.records.get(self.cell, PASSING)):
            if record != FINISHED or not is_endless:
                sink(0, record)
        self.engine.note("wait", self.cell)
        if is_endless:
            assert self.stopped.wait(20)
            sink(0, Interrupted())
            sink(0, FINISHED)
        return JobExit(status=0)

    def stop(self):
        self.engine.note("stop", self.cell)

    def collect(self, results):
        self.engine.note("collect", self.cell)
        for name, text in self.engine.files.get(self.cell, {}).items():
            (results / name).write_text(text)
