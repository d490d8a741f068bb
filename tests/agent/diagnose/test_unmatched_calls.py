from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import DEFAULT_GROUP, Calls, Count, GroupCalls
from allranks.agent.diagnose.unmatched_calls import Mismatch, describe_unmatched_call, find_mismatch, format_ranks

RANKS = 4
SUBSETS = [(0, 1, 2, 3), (0, 2), (1, 2, 3)]
GROUPS = {DEFAULT_GROUP: SUBSETS[0], "1": SUBSETS[1], "2": SUBSETS[2], "3": SUBSETS[1]}
KINDS = ["all_reduce", "barrier", "broadcast"]


@st.composite
def programs(draw):
    """Draw calls of correct ranks: ``("all_reduce", group)`` or ``("message", group, from, to, tag, is_any)``."""
    steps = []
    for name in draw(st.lists(st.sampled_from(list(GROUPS)), max_size=12)):
        members = GROUPS[name]
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(KINDS)), name))
        else:
            sender, receiver = draw(st.permutations(members))[:2]
            steps.append(("message", name, sender, receiver, draw(st.integers(0, 2)), draw(st.booleans())))
    return steps


class CallCounts:
    """Counts calls as ranks do."""

    def __init__(self):
        self.numbers, self.tags = Counter(), Counter()

    def collective(self, rank, group, kind):
        self._count(rank, group, kind)

    def send(self, group, sender, receiver, tag):
        self._count(sender, group, "send", receiver, 1 << 8 * tag)

    def receive(self, group, sender, receiver, tag):
        self._count(receiver, group, "recv", sender, 1 << 8 * tag)

    def _count(self, *key_and_tag):
        rank, group, kind, peer, tag = (*key_and_tag, None, 0)[:5] if len(key_and_tag) == 3 else key_and_tag
        self.numbers[rank, group, kind, peer] += 1
        self.tags[rank, group, kind, peer] += tag

    def run(self, steps):
        for step in steps:
            if step[0] == "message":
                _, group, sender, receiver, tag, is_any = step
                self.send(group, sender, receiver, tag)
                self.receive(group, None if is_any else sender, receiver, tag)
            else:
                for rank in GROUPS[step[1]]:
                    self.collective(rank, step[1], step[0])
        return self

    def calls(self, **more):
        return {rank: Calls(groups=tuple(self._groups(rank)), **more) for rank in range(RANKS)}

    def _groups(self, rank):
        for name, members in GROUPS.items():
            own = [(key, number) for key, number in self.numbers.items() if key[:2] == (rank, name)]
            if own:
                counts = (Count(kind=key[2], number=number, peer=key[3], tags=self.tags[key]) for key, number in own)
                yield GroupCalls(name=name, members=members, counts=tuple(counts))


@given(programs())
def test_correct_ranks_match(steps):
    assert find_mismatch(CallCounts().run(steps).calls()) is None


@given(programs(), st.data())
def test_a_surplus_message_is_an_error_of_its_sender(steps, data):
    group = data.draw(st.sampled_from(list(GROUPS)))
    sender, receiver = data.draw(st.permutations(GROUPS[group]))[:2]
    counter = CallCounts().run(steps)
    counter.send(group, sender, receiver, 0)
    mismatch = find_mismatch(counter.calls())
    assert mismatch.is_error
    assert sender in mismatch.ranks
    assert f" that rank {receiver} did not receive in this test" in mismatch.message


@given(programs(), st.data())
def test_a_surplus_receive_is_an_error_of_its_receiver(steps, data):
    group = data.draw(st.sampled_from(list(GROUPS)))
    sender, receiver = data.draw(st.permutations(GROUPS[group]))[:2]
    counter = CallCounts().run(steps)
    counter.receive(group, data.draw(st.sampled_from([sender, None])), receiver, 0)
    mismatch = find_mismatch(counter.calls())
    assert mismatch.is_error
    assert mismatch.ranks == (receiver,)
    waits = f"rank {receiver} waits for 1 message"
    reasons = (f"{waits} that rank {sender} did not send in ", f"{waits} that no rank sent in ")
    assert mismatch.message.startswith(reasons)


@given(programs(), st.data())
def test_a_collective_that_not_all_members_called_is_an_error(steps, data):
    group = data.draw(st.sampled_from(list(GROUPS)))
    callers = data.draw(st.sets(st.sampled_from(GROUPS[group]), min_size=1, max_size=len(GROUPS[group]) - 1))
    counter = CallCounts().run(steps)
    for rank in callers:
        counter.collective(rank, group, "reduce")
    mismatch = find_mismatch(counter.calls())
    assert mismatch.is_error
    assert " called reduce once in " in mismatch.message
    assert set(mismatch.ranks) in (callers, set(GROUPS[group]) - callers)


@given(programs(), programs())
def test_no_mismatch_is_an_error_after_an_exception(steps, others):
    calls = CallCounts().run(steps).calls()
    calls[1] = CallCounts().run(others).calls(failures=1)[1]
    mismatch = find_mismatch(calls)
    assert mismatch is None or not mismatch.is_error


@given(programs(), st.integers(0, RANKS - 1))
def test_calls_in_a_group_that_a_rank_has_closed_are_ignored(steps, rank):
    counter = CallCounts().run(steps)
    counter.send("1", 0, 2, 0)
    counter.collective(2, "1", "barrier")
    calls = counter.calls()
    others = (group for group in calls[rank].groups if group.name != "1")
    calls[rank] = Calls(groups=(*others, GroupCalls(name="1", members=SUBSETS[1], is_closed=True)))
    assert find_mismatch(calls) is None


SMALL = st.integers(-1, 3)
COUNTS = st.builds(
    Count, st.sampled_from([*KINDS, "send", "recv", "all_reduce of int8"]), SMALL, st.none() | SMALL, SMALL
)
ANY_CALLS = st.builds(
    Calls,
    groups=st.lists(
        st.builds(
            GroupCalls,
            name=st.sampled_from([DEFAULT_GROUP, "1"]),
            members=st.lists(SMALL, max_size=3).map(tuple),
            counts=st.lists(COUNTS).map(tuple),
            unseen=SMALL,
            is_closed=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    failures=SMALL,
)


@given(st.dictionaries(st.integers(0, 3), ANY_CALLS))
def test_any_report_of_ranks_can_be_compared(calls):
    mismatch = find_mismatch(calls)
    assert mismatch is None or mismatch.message


def both(first, second, **more):
    """Return the calls of two ranks in the default group."""
    group = {"name": DEFAULT_GROUP, "members": (0, 1)}
    return {rank: Calls(groups=(GroupCalls(**group, **own),), **more) for rank, own in enumerate((first, second))}


def numbers(*counts):
    """Return the calls of ranks that called all_reduce this number of times in the default group."""
    members = tuple(range(len(counts)))
    groups = [GroupCalls(name=DEFAULT_GROUP, members=members, counts=(Count("all_reduce", count),)) for count in counts]
    return {rank: Calls(groups=(group,)) for rank, group in enumerate(groups)}


@pytest.mark.parametrize(
    ("counts", "message", "compared"),
    [
        ((3, 2), "rank 0 called all_reduce 3 times in the default group, rank 1 twice", (1,)),
        ((0, 1), "rank 1 called all_reduce once in the default group, rank 0 not at all", (0,)),
        ((2, 2, 3), "ranks 0 and 1 called all_reduce twice in the default group, rank 2 3 times", (2,)),
        (
            (1, 1, 1, 0, 1, 2),
            "ranks 0-2 and 4 called all_reduce once in the default group, rank 5 twice, rank 3 not at all",
            (3, 5),
        ),
    ],
)
def test_ranks_with_an_unusual_number_of_calls_are_named(counts, message, compared):
    mismatch = find_mismatch(numbers(*counts))
    assert (mismatch.message, mismatch.ranks) == (message, compared)


def test_a_rank_without_calls_is_unusual():
    calls = numbers(1, 1)
    calls[1] = Calls()
    assert find_mismatch(calls).ranks == (1,)


def test_another_sender_than_expected_is_named():
    calls = both({"counts": (Count("send", 2, 1),)}, {"counts": (Count("recv", 1, 0),)})
    assert find_mismatch(calls).message == "rank 0 sent 1 message that rank 1 did not receive in this test"


@pytest.mark.parametrize(
    ("group", "where"), [(DEFAULT_GROUP, "in this test"), ("7", "in this test, in the group of ranks 0 and 1")]
)
@pytest.mark.parametrize(
    ("counts", "message", "rank"),
    [
        ((Count("send", 2, 1), None), "rank 0 sent 2 messages that rank 1 did not receive", 0),
        ((None, Count("recv", 2, 0)), "rank 1 waits for 2 messages that rank 0 did not send", 1),
        ((None, Count("recv", 1, None)), "rank 1 waits for 1 message that no rank sent", 1),
        ((Count("send", 3, 1), Count("recv", 1, None)), "rank 0 sent 2 messages that rank 1 did not receive", 0),
    ],
)
def test_unmatched_messages_are_counted_and_their_group_is_named(group, where, counts, message, rank):
    calls = {
        own: Calls(groups=(GroupCalls(name=group, members=(0, 1), counts=(count,) if count else ()),))
        for own, count in enumerate(counts)
    }
    assert find_mismatch(calls) == Mismatch(message=f"{message} {where}", ranks=(rank,), is_error=True)


def test_another_order_of_calls_is_a_notice():
    message = (
        "not all ranks of the default group called the same collectives in the same order, with equal types and sizes"
    )
    mismatch = find_mismatch(both({"order": 1}, {"order": 2}))
    assert mismatch == Mismatch(message=message, ranks=(0,), is_error=False)
    assert find_mismatch(both({"order": 2}, {"order": 2})) is None


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (numbers(1, 0), "rank 0 called all_reduce once in the default group, rank 1 not at all"),
        (numbers(1, 1), ""),
        ({**numbers(1, 0), 1: Calls(failures=1)}, ""),
    ],
)
def test_an_unmatched_call_is_described_if_no_call_failed(calls, message):
    assert describe_unmatched_call(calls) == message


def test_a_wrong_tag_is_named():
    calls = both({"counts": (Count("send", 1, 1, 5),)}, {"counts": (Count("recv", 1, 0, 6),)})
    assert find_mismatch(calls).message == "the messages to rank 1 and its receives have different tags in this test"


@pytest.mark.parametrize("receives", [(1, 0), (2, None)])
@pytest.mark.parametrize(("sent", "received"), [(0, 2**32), (2**32 - 1, -1), (5, 2**33 + 5)])
def test_tags_are_compared_modulo_two_to_the_32(receives, sent, received):
    number, source = receives
    calls = both({"counts": (Count("send", number, 1, sent),)}, {"counts": (Count("recv", number, source, received),)})
    assert find_mismatch(calls) is None


def test_different_calls_from_cpp_are_a_notice():
    mismatch = find_mismatch(both({"unseen": 3}, {"unseen": 2}))
    assert not mismatch.is_error


def test_different_calls_from_cpp_make_a_mismatch_a_notice():
    mismatch = find_mismatch(both({"unseen": 1, "counts": (Count("reduce", 1),)}, {"unseen": 2}))
    assert not mismatch.is_error
    assert "reduce" in mismatch.message


def test_equal_calls_from_cpp_leave_a_mismatch_an_error():
    assert find_mismatch(both({"unseen": 2, "counts": (Count("reduce", 1),)}, {"unseen": 2})).is_error


def test_an_error_takes_precedence_over_a_notice():
    doubt, error = ({"unseen": 1}, {}), numbers(1, 0)
    calls = {
        rank: Calls(groups=(GroupCalls(name="1", members=(0, 1), **doubt[rank]), *error[rank].groups))
        for rank in range(2)
    }
    assert find_mismatch(calls).is_error


def test_groups_that_a_split_names_differently_on_each_rank_are_a_notice():
    calls = {
        rank: Calls(groups=(GroupCalls(name=name, members=(0, 1), counts=(Count("barrier", 1),)),))
        for rank, name in enumerate("12")
    }
    assert not find_mismatch(calls).is_error


def test_no_calls_match():
    assert find_mismatch({}) is None
    assert find_mismatch({0: Calls(), 1: Calls()}) is None


def test_one_mismatch_among_many_kinds_is_found():
    counts = [[Count(f"kind{number}", 1 + (number == rank == 1)) for number in range(400)] for rank in range(2)]
    mismatch = find_mismatch(both(*({"counts": tuple(own)} for own in counts)))
    assert mismatch.message == "rank 0 called kind1 once in the default group, rank 1 twice"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((0, 1), "ranks 0 and 1"),
        ((0, 1, 2), "ranks 0-2"),
        ((0, 2, 4), "ranks 0, 2 and 4"),
        ((0, 1, 3, 5, 6, 7), "ranks 0, 1, 3 and 5-7"),
    ],
)
def test_ranks_are_listed(ranks, text):
    assert format_ranks(ranks) == text
