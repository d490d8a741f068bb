"""An engine that is a script."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

from allranks.engine.protocol import JobExit

COLLECTED = {"event": "collected", "tests": ["t"], "deselected": 1}
ARRIVED = {
    "event": "arrived", "at": 2.0, "nodeid": "t", "rank": 0, "outcome": "passed", "message": "", "consequence": False,
}  # fmt: skip
FINISHED = {"event": "agent_finished"}
WELL = (COLLECTED, ARRIVED, FINISHED)


@dataclass
class ScriptedEngine:
    """An engine that writes down what it is asked, and does as told for each cell.

    Attributes:
        events: What the job of a cell says.
        failures: What a step of a cell's job raises: ``("start", "gloo-w1-g0-env")``.
        acts: What happens at a step of a cell's job.
        endless: Cells whose jobs end only when they are told to.
    """

    log: list = field(default_factory=list)
    specs: dict = field(default_factory=dict)
    events: dict = field(default_factory=dict)
    failures: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    acts: dict = field(default_factory=dict)
    endless: set = field(default_factory=set)
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

    def vacate(self, gpus):
        self.log.append(f"vacate {','.join(gpus)}")

    def reap(self):
        return []


@dataclass
class ScriptedJob:
    engine: ScriptedEngine
    cell: str
    told: threading.Event = field(default_factory=threading.Event)

    def hang_up(self):
        self.told.set()

    def go(self):
        self.engine.note("go", self.cell)

    def wait(self, sink):
        is_endless = self.cell in self.engine.endless
        for event in self.engine.events.get(self.cell, WELL):
            if event != FINISHED or not is_endless:
                sink(event)
        self.engine.note("wait", self.cell)
        if is_endless:
            assert self.told.wait(20)
            sink({"event": "interrupted"})
            sink(FINISHED)
        return JobExit(status=0)

    def stop(self):
        self.engine.note("stop", self.cell)

    def collect(self, results):
        self.engine.note("collect", self.cell)
        for name, text in self.engine.files.get(self.cell, {}).items():
            (results / name).write_text(text)
