"""Trials of the delays of a failure, on gangs that are played."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from allranks.agent.channel import RunTest
from allranks.agent.program import ItemOptions, Program
from allranks.agent.supervisor.test_loop import RepetitionJournal
from allranks.plugins.stress.agent import shrink_run
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.shrink_run import shrink_failures
from allranks.plugins.stress.agent.skew import drawn_delays, milliseconds, parse_delays
from allranks.plugins.stress.agent.stress_run import Repetitions
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Passed, RankEnded, Repeated, TestStarted

LIMIT = TimeLimit(value=20, setting="limits.test")
SEED = 2
LATE = max((delay for delay in drawn_delays("heavy", SEED, 2) if delay.kind == "before"), key=lambda item: item.seconds)
NAME = f"t0 (repetition 3, seed {SEED}, skew"


@dataclass
class Played:
    """A job whose test fails in its repetition of one number, and again if LATE is late; its gangs die of failures."""

    results: object
    skew: str = "heavy"
    gang: str = "test"
    launches: int = 0
    records: list = field(default_factory=list)
    orders: list = field(default_factory=list)
    gangs: int = 0
    limits: dict = field(default_factory=dict)

    def __post_init__(self):
        terms = ItemOptions(gang=(self.gang,), has_process_group=True, limit=LIMIT, launches=self.launches)
        self.program = Program(tests=("t0",), options=(terms,))
        self.stress = Stress(count=5, skew=self.skew)
        self.repetitions = Repetitions(self.stress, self.program, self)
        self.config = SimpleNamespace(world_size=2, launches_ranks=False)

    def write(self, record):
        self.records.append(record)

    def run(self, plan, index, fails):
        self.gangs += 1
        journal = RepetitionJournal(self, plan)
        for _ in plan.steps([index]):
            number = plan.begin(index)
            command = plan.drawn(RunTest(index=index, nodeid="t0", following=None, seed=SEED), number)
            journal.write(TestStarted(nodeid="t0", seed=SEED, number=number))
            if fails(number, command):
                journal.write(ended())
                break
            journal.write(Passed(nodeid="t0", ranks=(0, 1), world_size=2, arrived=(1.0, 1.0), seconds=(0.1, 0.1)))
        journal.conclude()

    def try_again(self, trials, index):
        before = len(self.orders)
        [terms] = trials.limited(self.program).options
        self.run(trials, index, self.ordered)
        self.limits.setdefault(terms.limit.seconds, self.orders[before].instructions)

    def ordered(self, _, command):
        self.orders.append(command)
        own = [word for word in command.instructions.split(",") if f"{LATE.rank}:{LATE.kind}:{LATE.call}:" in word]
        for item in own:
            ms = item.rpartition(":")[2].removesuffix("ms")
            with (self.results / f"rank-{LATE.rank}.log").open("a") as log:
                log.write(f"--skew: {ms} ms {LATE.kind} allreduce (call {LATE.call} at test_x.py:41)\n")
        return bool(own)

    def shrink(self):
        while (turn := self.repetitions.next_turn()) is not None:
            self.run(self.repetitions, turn[0], lambda number, _: number == 3)
        shrink_failures(self.repetitions, self.stress, self.program, self.config, self.results, self.try_again)
        self.repetitions.finish()
        return [record for record in self.records if isinstance(record, Repeated)][-1].tally.shrunk


def ended():
    return RankEnded(nodeid="t0", rank=0, outcome=Outcome.FAILED, world_size=2, arrived=1.0, message="assert 1 == 2")


@pytest.mark.parametrize("gang", ["test", "module"])
def test_the_delay_that_matters_is_named_with_rank_and_line_and_both_rates(tmp_path, gang):
    job = Played(tmp_path, gang=gang)
    ms = milliseconds(LATE.seconds / 2**5)
    assert job.shrink() == (
        f"fails 10 of 10 times if rank {LATE.rank} is {ms} ms late "
        f"{LATE.kind} allreduce (call {LATE.call} at test_x.py:41), 0 of 200 without"
    )
    assert {order.seed for order in job.orders} == {SEED}
    assert job.gangs < len(job.orders) if gang == "module" else job.gangs >= len(job.orders)


def test_a_repetition_with_this_delay_alone_is_reported_by_a_name_that_replays_it(tmp_path):
    job = Played(tmp_path)
    why = job.shrink()
    skew = f"{LATE.rank}:{LATE.kind}:{LATE.call}:{milliseconds(LATE.seconds / 2**5)}ms"
    shown = [record for record in job.records if getattr(record, "nodeid", "") == f"{NAME} {skew})"]
    assert [type(record) for record in shown] == [TestStarted, RankEnded]
    assert shown[1].message == f"{why}: assert 1 == 2"
    [lead] = [
        record for record in job.records if isinstance(record, RankEnded) and record.nodeid == "t0" and record.text
    ]
    assert lead.message.endswith(f"; {why}")


def test_a_hang_is_known_by_the_time_of_good_repetitions_and_the_delays(tmp_path):
    job = Played(tmp_path)
    job.shrink()
    late = [limit for limit in job.limits if LATE.kind in job.limits[limit]]
    assert list(job.limits)[:2] == [20, 1.5], "first without delays, until one was good"
    assert job.limits[1.5] == "off"
    assert late
    for limit in late:
        assert limit == round(1.5 + sum(delay.seconds for delay in parse_delays(job.limits[limit])), 1)


@pytest.mark.parametrize("change", [{"skew": "off"}, {"skew": "0:before:1:5ms"}, {"launches": 2}], ids=str)
def test_nothing_is_searched_where_no_delays_were_drawn(tmp_path, change):
    job = Played(tmp_path, **change)
    assert job.shrink() == ""
    assert not job.orders


def test_a_search_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(shrink_run, "SEARCH", 0.0)
    job = Played(tmp_path)
    assert job.shrink() == ""
    assert not job.orders
