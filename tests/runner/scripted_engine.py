"""An engine that is a script."""

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
WELL = (COLLECTED, PASSED, FINISHED)


def facts_of(records):
    """The facts that these records come to."""
    facts = JobFacts()
    for record in records:
        facts.take(record)
    return facts


def failed(nodeid, rank=0, message="", *, outcome=Outcome.FAILED, world_size=None, **more):
    """A rank that has not passed, in a world that is just large enough unless told."""
    size = rank + 1 if world_size is None else world_size
    return RankEnded(nodeid=nodeid, rank=rank, outcome=outcome, world_size=size, arrived=2.0, message=message, **more)


class StandIn(Engine):
    """The base of engines that tests give to a host that is ready: nothing detects, prepares or cleans them up."""

    @classmethod
    def detect(cls, *, is_requested):
        raise NotImplementedError

    def prepare(self, matrix, progress, uses):
        raise NotImplementedError

    def clean_up(self, *, is_dry_run=False):
        raise NotImplementedError


@dataclass
class ScriptedEngine(StandIn):
    """An engine that writes down what it is asked, and does as told for each cell.

    Attributes:
        records: What the job of a cell reports after it has begun.
        failures: What a step of a cell's job raises: ``("start", "gloo-w1-g0-env")``.
        acts: What happens at a step of a cell's job.
        endless: Cells whose jobs end only when they are told to.
        orphans: Cells whose jobs an earlier orchestrator has started.
        no_leases: Why no GPU can be leased.
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
    told: threading.Event = field(default_factory=threading.Event)

    def request_stop(self):
        self.told.set()

    def go(self):
        self.engine.note("go", self.cell)

    def wait(self, sink):
        is_endless = self.cell in self.engine.endless
        for record in (BEGUN, *self.engine.records.get(self.cell, WELL)):
            if record != FINISHED or not is_endless:
                sink(0, record)
        self.engine.note("wait", self.cell)
        if is_endless:
            assert self.told.wait(20)
            sink(0, Interrupted())
            sink(0, FINISHED)
        return JobExit(status=0)

    def stop(self):
        self.engine.note("stop", self.cell)

    def collect(self, results):
        self.engine.note("collect", self.cell)
        for name, text in self.engine.files.get(self.cell, {}).items():
            (results / name).write_text(text)
