"""The GPU pool: leases, unhealthy GPUs, and the host-wide queue."""

import pytest

from allranks.engines.base import JobEnvironment
from allranks.runner.gpu_leases import GpuPool, claimed, holders

pytestmark = pytest.mark.usefixtures("locks")

GPUS = ("GPU-a", "GPU-b")


@pytest.fixture
def pool():
    return GpuPool(GPUS, "r1")


def test_a_lease_has_all_requested_gpus_or_none(pool):
    with pool.lease(1, "job") as lease:
        assert lease.gpus == ("GPU-a",)
        assert pool.count_free() == 1
        assert pool.lease(2, "other") is None
        assert (holders(GPUS)["GPU-a"].run_id, holders(GPUS)["GPU-a"].job_id) == ("r1", "job")
    assert pool.count_free() == 2


def test_an_unhealthy_gpu_is_not_leased(pool):
    pool.report_unhealthy(["GPU-a"])
    assert (pool.healthy, pool.count_free(), pool.unhealthy_among(GPUS)) == (("GPU-b",), 1, ["GPU-a"])
    assert pool.lease(2, "job") is None
    with pool.lease(1, "job") as lease:
        assert lease.gpus == ("GPU-b",)


def test_a_lease_ends_only_the_wait_of_its_own_job(pool):
    other = GpuPool(GPUS, "r2")
    pool.wait_in_queue("large")
    assert (other.count_free(), other.lease(1, "job")) == (0, None)
    with pool.lease(1, "small"):
        assert claimed() == {*GPUS}
    with pool.lease(2, "large"):
        assert claimed() == set()


def test_a_pool_that_leaves_the_queue_leaves_the_gpus_to_others(pool):
    pool.wait_in_queue("job")
    pool.leave_queue()
    pool.leave_queue()
    assert GpuPool(GPUS, "r2").count_free() == 2


def test_a_gpu_is_checked_once_in_each_environment(pool):
    one, two = JobEnvironment(image="one"), JobEnvironment(image="two")
    pool.report_checked(["GPU-a"], one)
    assert (pool.unchecked(GPUS, one), pool.unchecked(GPUS, two)) == (["GPU-b"], ["GPU-a", "GPU-b"])


def test_a_gpu_that_a_job_has_lost_is_checked_again(pool):
    one = JobEnvironment(image="one")
    pool.report_checked(GPUS, one)
    pool.forget_checks(["GPU-b"])
    assert pool.unchecked(GPUS, one) == ["GPU-b"]
