"""The records of a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.diagnose.step_outcome import Step, StepOutcome, failed_start, outcome_records
from allranks.agent.output import Output
from allranks.agent.program import ItemOptions, Program
from allranks.agent.supervisor.test_loop import RerunCommands
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import TEXT_LIMIT, Outcome, Phase, SkipKind
from allranks.protocol.records import Passed, PhaseEnd, RankEnded, decode, encode

TEST = "t::x"


def step_outcome(rank, outcome, **more):
    return StepOutcome(rank=rank, outcome=Outcome(outcome), at=10.0 + rank, **more)


def phase(when, outcome="passed", **more):
    return Phase(when=when, outcome=Outcome(outcome), duration=0.5, **more)


def ends(*outcomes, outputs=None, **phases):
    step = Step(nodeid=TEST, outcomes=list(outcomes), phases={int(name[1:]): own for name, own in phases.items()})
    return outcome_records(step, TEST, 4, outputs or {})


def test_ranks_that_passed_share_a_record():
    whole = [phase("setup"), phase("call"), phase("teardown")]
    [passed] = ends(step_outcome(1, "passed"), step_outcome(0, "passed"), r0=whole, r1=whole[:2])
    assert (passed.nodeid, passed.world_size) == (TEST, 4)
    assert (passed.ranks, passed.arrived, passed.seconds) == ((1, 0), (11.0, 10.0), (1.0, 1.5))


def test_other_ranks_have_their_own_records_in_order_of_arrival():
    made = ends(
        step_outcome(0, "passed"), step_outcome(3, "failed", message="a"), step_outcome(1, "aborted", consequence=True)
    )
    assert [getattr(record, "rank", None) for record in made] == [None, 3, 1]
    assert {record.outcome for record in made} == {Outcome.PASSED, Outcome.FAILED, Outcome.ABORTED}


def test_no_outcome_is_no_record():
    assert ends() == []


def test_the_deciding_phase_is_the_outcome():
    failed = phase("call", "failed", message="why", text="traceback")
    [end] = ends(step_outcome(0, "failed"), r0=[phase("setup"), failed, phase("teardown")])
    assert (end.outcome, end.phase, end.message, end.text) == (Outcome.FAILED, "call", "why", "traceback")
    assert end.phases[1] == PhaseEnd(when="call", outcome=Outcome.FAILED, seconds=0.5)
    assert end.seconds == 1.5


def test_an_observed_outcome_overrides_passed_phases():
    seen = step_outcome(0, "crashed", message="rank 0 was killed by SIGKILL", text="stacks", observed=True)
    [end] = ends(seen, r0=[phase("setup")])
    assert (end.outcome, end.phase, end.message, end.text) == (
        Outcome.CRASHED,
        "",
        "rank 0 was killed by SIGKILL",
        "stacks",
    )


def test_an_observed_outcome_has_the_time_since_the_test_began():
    hung, own = step_outcome(0, "timed_out", observed=True), step_outcome(1, "failed")
    step = Step(nodeid=TEST, outcomes=[hung, own], phases={0: [phase("setup")], 1: [phase("setup")]}, since=7.0)
    assert [(record.seconds, record.observed) for record in outcome_records(step, TEST, 4, {})] == [
        (3.0, 3.0),
        (0.5, 0.0),
    ]


def test_a_skip_by_exit_has_its_code():
    skip = {"skip_kind": SkipKind.HARDWARE, "skip_code": 74, "gpus_needed": 1}
    [end] = ends(step_outcome(0, "skipped", message="no CUDA", observed=True, **skip), r0=[phase("setup")])
    assert (end.outcome, end.message) == (Outcome.SKIPPED, "no CUDA")
    assert {name: getattr(end, name) for name in skip} == skip


def test_the_cause_is_recorded():
    [end] = ends(step_outcome(1, "aborted", caused_by=3, consequence=True))
    assert (end.caused_by, end.consequence, end.is_lost) == (3, True, False)
    assert ends(step_outcome(1, "crashed", is_lost=True, observed=True))[0].is_lost


def test_output_of_a_phase_is_used_if_the_rank_printed_nothing():
    failed = phase("call", "failed", stdout="a plugin's", stderr="a plugin's")
    [end] = ends(step_outcome(0, "failed"), r0=[failed], outputs={0: Output(stdout="printed")})
    assert (end.stdout, end.stderr) == ("printed", "a plugin's")


def test_texts_are_bounded():
    output = Output(stdout="x" * 1_000_000, stderr="y" * 1_000_000)
    [end] = ends(step_outcome(0, "failed", text="z" * 1_000_000, observed=True), outputs={0: output})
    assert max(map(len, (end.stdout, end.stderr, end.text))) < TEXT_LIMIT + 100


def test_a_rank_that_passed_and_printed_torchs_sandcastle_line_was_skipped():
    line = "Skipping test on sandcastle for the following reason: no such device\n"
    made = ends(step_outcome(0, "passed"), step_outcome(1, "passed"), outputs={1: Output(stderr=f"noise\n{line}")})
    [passed, skipped] = made
    assert passed.ranks == (0,)
    assert (skipped.rank, skipped.outcome, skipped.skip_kind) == (1, Outcome.SKIPPED, SkipKind.ENVIRONMENT)
    assert "no such device" in skipped.message


@pytest.mark.parametrize("outcome", ["failed", "crashed", "aborted"])
def test_the_sandcastle_line_does_not_change_a_failure(outcome):
    line = "Skipping test on sandcastle for the following reason: no such device\n"
    [end] = ends(step_outcome(0, outcome), outputs={0: Output(stderr=line)})
    assert end.outcome == outcome


def test_ranks_that_joined_are_aborted_by_the_rank_that_did_not():
    first = step_outcome(1, "errored", message="no port")
    step = failed_start(Step(outcomes=[first, step_outcome(0, "passed")]), first)
    [failed, aborted] = step.outcomes
    assert failed == first
    assert (aborted.outcome, aborted.caused_by, aborted.consequence) == (Outcome.ABORTED, 1, True)
    assert aborted.message == "aborted by rank 1, which did not join the process group"


def test_ranks_that_joined_are_aborted_by_the_rank_that_skipped():
    first = step_outcome(1, "skipped")
    step = failed_start(Step(outcomes=[first, step_outcome(0, "passed")]), first)
    assert step.outcomes[1].message == "aborted by rank 1, which skipped"


PHASES = st.lists(
    st.builds(
        phase, st.sampled_from(["setup", "call", "teardown"]), st.sampled_from(Outcome), message=st.text(max_size=9)
    ),
    max_size=4,
)
OUTCOMES = st.builds(
    step_outcome, st.integers(0, 3), st.sampled_from(Outcome), observed=st.booleans(), message=st.text(max_size=9)
)


@given(
    st.lists(OUTCOMES, max_size=4, unique_by=lambda outcome: outcome.rank), st.dictionaries(st.integers(0, 3), PHASES)
)
def test_each_outcome_has_one_record_and_a_failure_stays_one(outcomes, phases):
    made = outcome_records(Step(nodeid=TEST, outcomes=outcomes, phases=phases), TEST, 4, {})
    passed = [rank for record in made if isinstance(record, Passed) for rank in record.ranks]
    others = [record for record in made if isinstance(record, RankEnded)]
    assert sorted([*passed, *(each.rank for each in others)]) == sorted(each.rank for each in outcomes)
    failed = {record.rank for record in others if record.outcome.is_bad}
    assert failed >= {outcome.rank for outcome in outcomes if outcome.outcome.is_bad}
    assert all(decode(encode(record)) == record for record in made)


def test_the_failure_of_a_scripts_test_has_its_command():
    def options(*, is_script):
        limit = TimeLimit(value=1.0, setting="limits.test")
        return ItemOptions(gang=("file",), has_process_group=False, limit=limit, is_script=is_script)

    written = []
    program = Program(
        tests=("a/test_x.py::TestX::test_y", "a/test_z.py::test_z"),
        options=(options(is_script=True), options(is_script=False)),
    )

    class List:
        def write(self, record):
            written.append(record)

    def write(test, outcome, **more):
        record = RankEnded(nodeid=test, rank=0, outcome=outcome, world_size=2, arrived=0.0, text="traceback", **more)
        RerunCommands(List(), program).write(record)
        return written.pop().text

    script, other = program.tests
    assert write(script, Outcome.FAILED) == "traceback\n\nWithout allranks: python a/test_x.py TestX.test_y"
    assert write(script, Outcome.ABORTED, consequence=True) == "traceback"
    assert write(script, Outcome.SKIPPED) == "traceback"
    assert write(other, Outcome.FAILED) == "traceback"
    assert write("unknown", Outcome.FAILED) == "traceback"
