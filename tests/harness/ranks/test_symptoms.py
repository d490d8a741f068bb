"""Which exceptions say no more than that a peer was late or gone; those of torch and gloo are raised for real."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from allranks.harness.ranks.reports import is_symptom, with_cause
from allranks.tracebacks import headline


def raised_by(act):
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return error
    return None


def test_a_store_that_waits_for_a_key_in_vain_is_a_symptom(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    store.set_timeout(timedelta(seconds=0.1))
    assert is_symptom(raised_by(lambda: store.get("nobody sets it")))


def test_a_server_that_nobody_starts_is_a_symptom():
    def join():
        dist.TCPStore("127.0.0.1", 1, 2, is_master=False, timeout=timedelta(seconds=1))

    assert is_symptom(raised_by(join))


GLOO = "[../third_party/gloo/gloo/transport/tcp/{}"


@pytest.mark.parametrize(
    "text",
    [
        GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:36127"),
        GLOO.format("pair.cc:547] Read error [127.0.0.1]:1: Connection reset by peer"),
        GLOO.format("unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"),
    ],
)
def test_what_gloo_says_of_a_peer_is_a_symptom(text):
    assert is_symptom(of_torch(text))


def of_torch(text, kind=RuntimeError):
    """An exception that a file of torch.distributed's raises."""
    program = compile("raise kind(text)", str(Path(dist.__file__).parent / "some.py"), "exec")
    return raised_by(lambda: exec(program, {"kind": kind, "text": text}))  # noqa: S102 - as a file of torch's


def lost():
    return of_torch(GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:36127"))


def wrap(error):
    raise LookupError from error


@pytest.mark.parametrize(
    ("act", "made"),
    [
        (wrap, LookupError),
        (lambda _: pytest.fail("no answer"), pytest.fail.Exception),
        (lambda _: [].pop(), IndexError),
    ],
)
def test_what_a_suite_makes_of_a_symptom_is_one(act, made):
    def handle():
        try:
            fail()
        except RuntimeError as error:
            act(error)

    def fail():
        raise lost()

    with pytest.raises(made) as raised:
        handle()
    assert is_symptom(raised.value)


def test_a_wait_in_the_finally_of_an_assertion_that_failed_is_none():
    def waits_in_finally(failure):
        try:
            raise failure
        finally:
            raise lost()

    with pytest.raises(RuntimeError) as raised:
        waits_in_finally(AssertionError("the cause"))
    assert not is_symptom(raised.value)
    assert with_cause("lost", raised.value) == "AssertionError: the cause; then lost"
    with pytest.raises(RuntimeError) as raised:
        waits_in_finally(lost())
    assert is_symptom(raised.value)


def test_a_group_is_a_symptom_if_all_that_is_in_it_is():
    assert is_symptom(BaseExceptionGroup("two", [lost(), ExceptionGroup("one", [lost()])]))
    assert not is_symptom(ExceptionGroup("two", [lost(), KeyError()]))


@pytest.mark.parametrize("kind", [RuntimeError, dist.DistNetworkError, dist.DistBackendError])
def test_whoever_raises_what_torch_raises_is_no_victim_of_a_peer(kind):
    def fail():
        raise kind(GLOO.format("connection closed by peer, timed out"))

    assert not is_symptom(raised_by(fail))


def test_the_name_of_a_suites_folder_says_nothing(tmp_path):
    path = tmp_path / "torch" / "distributed" / "test_it.py"
    program = compile("raise RuntimeError('broken pipe, timed out')", str(path), "exec")
    assert not is_symptom(raised_by(lambda: exec(program)))  # noqa: S102 - as a file of a suite's


def test_an_exception_that_cannot_be_told_is_none():
    class Mute(RuntimeError):  # noqa: N818 - what a suite might call it
        def __str__(self):
            raise KeyError

    assert not is_symptom(Mute())


def test_a_circle_of_exceptions_ends():
    one, other = KeyError(), KeyError()
    one.__context__, other.__context__ = other, one
    assert not is_symptom(one)


@pytest.mark.parametrize(
    "error",
    [
        None,
        AssertionError("the operation timed out"),
        RuntimeError("timed out"),
        TimeoutError("timed out"),
        RuntimeError(GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:36127")),
        KeyError("connection closed by peer"),
    ],
)
def test_a_rank_s_own_trouble_is_none(error):
    assert not is_symptom(error)


def test_what_torch_says_of_a_call_itself_is_none():
    assert not is_symptom(of_torch(GLOO.format("pair.cc:1] op.preamble.length <= op.nbytes. 8 vs 4")))
    assert not is_symptom(of_torch("NCCL error: invalid usage", dist.DistBackendError))


CALLEE = "RuntimeError: On WorkerInfo(id=1, name=worker1):\nRuntimeError('the cache timed out')\nTraceback …"


def test_what_a_function_raises_on_another_worker_is_no_symptom_and_is_named():
    error = of_torch(CALLEE)
    assert not is_symptom(error)
    message = with_cause(headline(CALLEE), error)
    assert message == "RuntimeError: On WorkerInfo(id=1, name=worker1): RuntimeError('the cache timed out')"


def test_the_end_of_a_connection_between_workers_is_a_symptom():
    place = "this error originated at tensorpipe/transport/shm/connection_impl.cc:259"
    assert is_symptom(of_torch(f"eof ({place})"))


def test_an_exception_may_say_itself_that_it_is_one():
    class Waited(Exception):  # noqa: N818 - what a suite might call it
        allranks_symptom = True

    assert is_symptom(Waited())


def test_a_wrong_argument_to_a_collective_is_no_symptom():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        error = raised_by(lambda: dist.broadcast(torch.ones(1), src=5))
        assert error is not None
        assert not is_symptom(error)
    finally:
        dist.destroy_process_group()
