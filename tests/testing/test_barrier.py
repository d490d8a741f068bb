import pytest

from allranks.agent.rank.reports import waited_for
from allranks.testing.shared_files import FileBarrier, PeerTimeoutError


def test_a_barrier_of_one_rank_does_not_wait(tmp_path):
    barrier = FileBarrier(tmp_path, 0, 1)
    for _ in range(3):
        barrier(timeout=0)
    assert any(tmp_path.iterdir())


def test_all_missing_ranks_are_named(tmp_path):
    FileBarrier(tmp_path, 2, 4)._file(1, 2).touch()
    with pytest.raises(PeerTimeoutError) as caught:
        FileBarrier(tmp_path, 0, 4)(timeout=0)
    assert str(caught.value) == (
        "rank 0 waited 0 s at the file barrier, but ranks 1, 3 did not arrive (call 1 of this test)"
    )


def test_a_report_of_an_earlier_run_does_not_replace_a_missing_rank(tmp_path):
    mine = FileBarrier(tmp_path, 0, 2)
    mine._file(1, 1).touch()
    mine(timeout=0)
    with pytest.raises(PeerTimeoutError, match=r"rank 1 did not arrive \(call 2"):
        mine(timeout=0)


def test_a_barrier_keeps_one_file_for_each_rank(tmp_path):
    barrier = FileBarrier(tmp_path, 0, 1)
    for _ in range(5):
        barrier()
    assert [path.name for path in tmp_path.iterdir()] == ["5-0"]


def test_a_failed_wait_is_a_secondary_failure():
    assert waited_for(PeerTimeoutError("rank 1 did not arrive"))
