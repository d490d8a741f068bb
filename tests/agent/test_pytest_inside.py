"""Features of pytest in ranks of real agents."""

import os
import signal
import sys

import pytest
from long_lists import quick

from allranks.protocol.records import AgentFailed, CollectionFailed, FailureKind, GangStarted, Notice

PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
"""Environment of an agent that loads installed plugins."""

ZOO = {
    "pytest.ini": """
        [pytest]
        markers = mine: a mark of this suite
        addopts = --doctest-modules
    """,
    "conftest.py": """
        import pytest

        made = []

        @pytest.fixture(scope="session", autouse=True)
        def of_session():
            made.append("session")
            return made

        @pytest.fixture(scope="package")
        def of_package():
            made.append("package")
            return "package"

        @pytest.fixture
        def doubled(request):
            return 2 * request.param
    """,
    "nested/conftest.py": """
        import pytest

        @pytest.fixture
        def only_here():
            return "nested"
    """,
    "nested/test_nested.py": """
        def test_nested_conftest(only_here, of_session):
            assert only_here == "nested"
            assert of_session.count("session") == 1
    """,
    "words.py": '''
        def double(number):
            """Doubles.

            >>> double(2)
            4
            """
            return 2 * number

        def wrong():
            """
            >>> 1 + 1
            3
            """
    ''',
    "test_features.py": """
        import logging, os, sys, unittest, warnings
        import pytest

        state = []

        def setup_module(module):
            module.state.append("setup_module")

        @pytest.fixture(scope="module")
        def of_module():
            state.append("module")
            yield "module"

        @pytest.fixture(scope="class")
        def of_class():
            state.append("class")

        def test_scopes(of_session, of_package, of_module, request):
            assert state.count("setup_module") == 1
            assert (of_package, of_module) == ("package", "module")

        def test_module_fixture_is_made_once(of_module):
            assert state.count("module") == 1

        @pytest.mark.parametrize("doubled", [1, 2], indirect=True)
        @pytest.mark.parametrize("plain", ["x"])
        def test_parameters(doubled, plain):
            assert doubled in (2, 4)

        @pytest.mark.mine
        @pytest.mark.skipif(sys.platform != "nowhere", reason="a mark skips")
        def test_skipif():
            assert 0

        @pytest.mark.xfail(reason="known", strict=True)
        def test_xfail():
            assert 0

        @pytest.mark.xfail(raises=ValueError)
        def test_xfail_for_another_reason():
            raise KeyError("not what was said")

        @pytest.mark.xfail(strict=True)
        def test_strict_xpass():
            pass

        @pytest.mark.xfail(strict=False)
        def test_xpass():
            pass

        @pytest.mark.xfail(run=False)
        def test_xfail_that_does_not_run():
            os._exit(9)

        def test_rewritten_assertion():
            numbers = [1, 2, 3]
            assert sum(numbers) == 7

        class TestClass:
            @classmethod
            def setup_class(cls):
                cls.calls = ["setup_class"]

            def setup_method(self):
                self.calls.append("setup_method")

            def test_class(self, of_class):
                assert self.calls == ["setup_class", "setup_method"]

            def test_class_again(self):
                assert self.calls == ["setup_class", "setup_method", "setup_method"]

        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.cleaned = []

            def setUp(self):
                self.addCleanup(self.cleaned.append, self._testMethodName)

            def test_1_case(self):
                self.assertEqual(self.cleaned, [])

            def test_2_case(self):
                self.assertEqual(self.cleaned, ["test_1_case"])

            def test_3_subtests(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertNotEqual(number, 1)

            @unittest.expectedFailure
            def test_4_expected_failure(self):
                self.fail("as expected")

        class TestAsyncCase(unittest.IsolatedAsyncioTestCase):
            async def test_async(self):
                self.assertTrue(True)

        def test_tmp_path(tmp_path, tmp_path_factory, rank):
            (tmp_path / "mine").write_text(str(rank))
            import torch.distributed as dist
            places = [None, None]
            dist.all_gather_object(places, str(tmp_path))
            assert places[0] != places[1]
            assert tmp_path_factory.mktemp("more").is_dir()
            assert (tmp_path / "mine").read_text() == str(rank)

        def test_monkeypatch(monkeypatch):
            monkeypatch.setenv("PATCHED", "1")
            assert os.environ["PATCHED"] == "1"

        def test_monkeypatch_is_undone():
            assert "PATCHED" not in os.environ

        def test_capsys(capsys):
            print("printed")
            assert capsys.readouterr().out == "printed\\n"

        def test_capfd(capfd):
            os.write(1, b"written")
            os.system("echo from a child >&2")
            captured = capfd.readouterr()
            assert (captured.out, captured.err) == ("written", "from a child\\n")

        def test_capture_disabled(capsys):
            with capsys.disabled():
                print("beside the capture")

        def test_caplog(caplog):
            logging.getLogger("suite").warning("logged")
            assert caplog.messages == ["logged"]

        def test_recwarn(recwarn):
            warnings.warn("careful")
            assert str(recwarn.pop(UserWarning).message) == "careful"

        @pytest.mark.filterwarnings("error")
        def test_filterwarnings():
            with pytest.raises(UserWarning):
                warnings.warn("careful")

        def test_record_property(record_property):
            record_property("key", "value")

        @pytest.mark.timeout(20)
        def test_within_its_timeout():
            pass

        @pytest.mark.usefixtures("of_class")
        def test_usefixtures():
            pass

        def test_getfixturevalue(request):
            assert request.getfixturevalue("of_module") == "module"

        def test_worker_id(worker_id, rank):
            assert worker_id == f"gw{rank}"
    """,
    "test_skipped_module.py": """
        import pytest
        pytest.importorskip("no_such_package")

        def test_never(): pass
    """,
}

PASSED = """
test_nested_conftest words.double test_scopes test_module_fixture_is_made_once test_parameters[x-1]
test_parameters[x-2] test_class test_class_again test_1_case test_2_case test_async test_tmp_path test_monkeypatch
test_monkeypatch_is_undone test_capsys test_capfd test_capture_disabled test_caplog test_recwarn test_filterwarnings
test_record_property test_within_its_timeout test_usefixtures test_getfixturevalue test_worker_id
"""


@pytest.fixture(scope="module")
def zoo(run_once):
    return run_once("pytest-zoo", ZOO, environment=PLUGINS)


@pytest.mark.parametrize("test", PASSED.split())
def test_features_work_as_in_a_plain_run(zoo, test):
    assert zoo.outcomes(test) == ("passed", "passed"), zoo.cases(0)[test].text


@pytest.mark.parametrize(
    ("test", "outcome", "words"),
    [
        ("words.wrong", "failed", ""),
        ("test_skipif", "skipped", "a mark skips"),
        ("test_xfail", "xfailed", "known"),
        ("test_xfail_for_another_reason", "failed", "KeyError"),
        ("test_strict_xpass", "failed", "XPASS(strict)"),
        ("test_xpass", "xpassed", ""),
        ("test_xfail_that_does_not_run", "xfailed", ""),
        ("test_rewritten_assertion", "failed", "assert 6 == 7"),
        ("test_3_subtests", "failed", "1 == 1"),
        ("test_4_expected_failure", "xfailed", ""),
        ("suite.test_skipped_module", "skipped", "no_such_package"),
    ],
)
def test_outcomes_are_those_of_a_plain_run(zoo, test, outcome, words):
    assert zoo.outcomes(test) == (outcome, outcome)
    assert words in zoo.cases(0)[test].message


def test_all_tests_of_the_zoo_are_checked(zoo):
    others = {case.name for case in zoo.cases(0).values() if case.outcome != "passed"}
    assert set(zoo.cases(1)) == {*PASSED.split(), "test_xpass"} | others


ONE = {"test_one.py": "import sys\ndef test_one():\n    print('seen')\n    print('seen too', file=sys.stderr)\n"}


@pytest.mark.parametrize(
    "arguments",
    quick(
        1,
        map(
            pytest.param,
            [
                ("-p", "no:capture"),
                ("-p", "no:cacheprovider", "-W", "error"),
                ("-p", "no:terminal"),
                ("-p", "no:faulthandler"),
                ("-p", "no:logging"),
                ("-s",),
                ("-v",),
                ("-qq",),
                ("-n", "0"),
                ("--durations=3",),
                ("--setup-show",),
                ("--import-mode=importlib",),
                ("--capture=tee-sys",),
                ("--basetemp=here",),
                ("--strict-markers", "--strict-config"),
                ("-o", "log_cli=true"),
            ],
        ),
    ),
    ids=" ".join,
)
def test_an_option_changes_no_outcome(run_agent, arguments):
    agent = run_agent(ONE, pytest_args=arguments, world_size=1, environment=PLUGINS)
    assert agent.outcomes("test_one") == ("passed",)


CYCLE = """
    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            raise ValueError("in a finalizer")

    def test_cycle(rank):
        if rank == 1:
            Cycle()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("arguments", "outcome"), [((), "passed"), (("-W", "error"), "errored")], ids=str)
def test_a_failed_finalizer_after_the_last_test_is_an_error_if_warnings_are(run_agent, arguments, outcome):
    agent = run_agent({"test_cycle.py": CYCLE}, pytest_args=arguments)
    assert agent.outcomes("test_cycle") == ("passed", outcome)


@pytest.mark.parametrize(
    ("arguments", "words"),
    quick(
        1,
        [
            (("--pdb",), "--pdb cannot be used: ranks have no terminal"),
            (("--trace",), "--trace cannot be used: ranks have no terminal"),
            (("--setup-only",), "--setup-only cannot be used: it runs no test"),
            (("--setup-plan",), "--setup-plan cannot be used: it runs no test"),
            (("-n", "2"), "pytest-xdist cannot be used, because the ranks of a cell already run its tests"),
            (("--dist=each", "--tx=2*popen"), "pytest-xdist cannot be used"),
        ],
    ),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unsupported_option_is_rejected_with_a_reason(start_agent, arguments, words):
    agent = start_agent(ONE, pytest_args=arguments, world_size=1, environment=PLUGINS).go()
    assert agent.wait() == 1
    [failure] = agent.all(AgentFailed)
    assert failure.kind is FailureKind.USAGE
    assert failure.message.startswith(words)
    assert not agent.all(CollectionFailed)
    assert agent.cases(0) == {}


@pytest.mark.thorough
def test_the_plugin_of_an_installed_allranks_does_nothing_in_a_job(run_agent):
    arguments = ("--ranks=3", "--pdb-rank=7")
    agent = run_agent(ONE, pytest_args=arguments, world_size=2)
    assert agent.outcomes("test_one") == ("passed", "passed")


@pytest.mark.thorough
def test_another_version_of_allranks_in_the_jobs_python_is_an_error(start_command, tmp_path):
    installed = tmp_path / "site" / "allranks-9.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: allranks\nVersion: 9.9\n")
    path = os.pathsep.join([str(installed.parent), *sys.path])
    agent = start_command(ONE, world_size=1, environment={"PYTHONPATH": path}).go()
    assert agent.wait() == 1
    [failure] = agent.all(AgentFailed)
    assert failure.kind is FailureKind.USAGE
    assert "but allranks 9.9 is installed in the job's Python" in failure.message
    assert agent.cases(0) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    quick(
        1,
        [
            (("--no-such-option",), "unrecognized arguments: --no-such-option"),
            (("--maxfail",), "argument --maxfail: expected one argument"),
            (("-k", "a and"), "Wrong expression passed to '-k': a and"),
            (("suite/nope.py",), "file or directory not found: suite/nope.py"),
            (("suite/test_one.py::test_two",), "not found: "),
        ],
    ),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_of_pytest_are_a_usage_error(start_agent, arguments, words):
    agent = start_agent(ONE, pytest_args=arguments, world_size=1).go()
    agent.wait()
    [failure] = agent.all(AgentFailed)
    assert failure.kind is FailureKind.USAGE
    assert failure.message.startswith(f"pytest rejected its arguments: {words}")
    assert "addopts" in failure.text
    assert not agent.all(CollectionFailed)
    assert not agent.all(GangStarted)


def test_a_conftest_file_that_cannot_be_imported_is_the_fault_of_the_suite(start_agent):
    agent = start_agent({**ONE, "conftest.py": "import no_such_module"}, world_size=1).go()
    agent.wait()
    assert not agent.all(AgentFailed)
    assert "no_such_module" in agent.all(CollectionFailed)[0].text


def test_reports_of_pytest_itself_are_not_written_with_a_notice(run_agent, tmp_path):
    agent = run_agent(ONE, pytest_args=(f"--junitxml={tmp_path}/mine.xml",), world_size=1)
    assert agent.outcomes("test_one") == ("passed",)
    assert [notice.text.partition(":")[0] for notice in agent.all(Notice)] == ["--junitxml was ignored"]
    assert not (tmp_path / "mine.xml").exists()


def test_marks_and_keywords_choose_tests(run_agent):
    suite = """
        import pytest

        @pytest.mark.slow
        def test_slow(): pass

        @pytest.mark.slow
        def test_slow_red(): pass

        def test_fast(): pass
    """
    agent = run_agent({"test_marks.py": suite}, pytest_args=("-m", "slow", "-k", "not red"), world_size=1)
    assert list(agent.cases(0)) == ["test_slow"]


FICKLE = {
    "test_a.py": """
        def test_fails_on_one_rank(rank): assert rank == 0
        def test_passes(): pass
    """,
    "test_b.py": """
        def test_also_passes(): pass
        def test_fails(): assert 0
    """,
}
DISAGREEING = {
    "test_c.py": """
        import pytest

        def test_passes(): pass
        def test_skips_on_one_rank(rank):
            if rank:
                pytest.skip("not here")
    """
}


@pytest.fixture
def run_again(run_once, tmp_path):
    """Run an agent repeatedly on a suite with a shared cache."""

    def run(files, *arguments, world_size=2):
        cache = ("-o", f"cache_dir={tmp_path}/cache")
        return run_once("again", files, pytest_args=(*cache, *arguments), world_size=world_size)

    return run


def names(agent):
    return list(agent.cases(0))


def test_last_failed_includes_tests_that_failed_on_any_rank(run_again):
    run_again(FICKLE)
    assert names(run_again(FICKLE, "--lf")) == ["test_fails_on_one_rank", "test_fails"]
    assert names(run_again(FICKLE, "--ff"))[:2] == ["test_fails_on_one_rank", "test_fails"]


@pytest.mark.thorough
def test_last_failed_includes_ranks_that_disagreed_on_a_skip(run_again):
    run_again(DISAGREEING)
    assert names(run_again(DISAGREEING, "--lf")) == ["test_skips_on_one_rank"]


@pytest.mark.thorough
def test_a_partial_run_forgets_only_failures_that_passed_in_it(run_again):
    run_again(FICKLE)
    mended = {**FICKLE, "test_b.py": FICKLE["test_b.py"].replace("assert 0", "pass")}
    run_again(mended, "-k", "fails and not rank")
    assert names(run_again(mended, "--lf")) == ["test_fails_on_one_rank"]


@pytest.mark.thorough
def test_new_tests_can_come_first(run_again):
    run_again({"test_b.py": FICKLE["test_b.py"]})
    assert names(run_again(FICKLE, "--nf"))[:2] == ["test_fails_on_one_rank", "test_passes"]


@pytest.mark.thorough
def test_stepwise_stops_at_a_failure_and_resumes_there(run_again):
    first = run_again(FICKLE, "--sw")
    assert names(first) == ["test_fails_on_one_rank"]
    mended = {**FICKLE, "test_a.py": FICKLE["test_a.py"].replace("assert rank == 0", "pass")}
    assert names(run_again(mended, "--sw")) == [
        "test_fails_on_one_rank",
        "test_passes",
        "test_also_passes",
        "test_fails",
    ]
    assert names(run_again(mended, "--sw")) == ["test_fails"]


@pytest.mark.thorough
def test_the_cache_is_among_the_results(run_agent):
    agent = run_agent(FICKLE, world_size=1)
    assert "test_fails" in (agent.results / "pytest-cache/v/cache/lastfailed").read_text()


LOCKSTEP = {
    "test_lockstep.py": """
        import json, os, time
        import pytest
        import torch.distributed as dist
        from hypothesis import given, settings, strategies as st, Phase, HealthCheck
        from hypothesis.stateful import RuleBasedStateMachine, rule

        def agree(value):
            values = [None, None]
            dist.all_gather_object(values, value)
            assert values[0] == values[1], values

        @given(st.lists(st.integers()), st.text())
        def test_same_examples(numbers, text):
            agree([numbers, text])

        @settings(deadline=1, max_examples=5)
        @given(st.integers())
        def test_slow_examples(rank, number):
            time.sleep(0.05 * rank)
            agree(number)

        @given(st.integers())
        def test_fails_on_one_rank_alone(rank, number):
            agree(number)
            assert rank == 0 or number < 100

        @given(st.integers(0, 2**16))
        def test_fails_without_shrinking(number):
            with open(f"examples-{os.environ['RANK']}", "a") as file:
                print(number, file=file)
            assert number < 100

        class TestMethods:
            @given(number=st.integers())
            @pytest.mark.parametrize("word", ["a", "b"])
            def test_method(self, word, number):
                agree([word, number])

        class Machine(RuleBasedStateMachine):
            @rule(number=st.integers())
            def steps(self, number):
                agree(number)

        TestMachine = Machine.TestCase
        TestMachine.settings = settings(max_examples=3, stateful_step_count=3)
    """
}


@pytest.fixture(scope="module")
def lockstep(run_once):
    return run_once("lockstep", LOCKSTEP, environment=PLUGINS)


@pytest.mark.parametrize(
    "test", quick(1, ["test_same_examples", "test_slow_examples", "test_method[a]", "test_method[b]", "runTest"])
)
def test_all_ranks_run_the_same_hypothesis_examples(lockstep, test):
    assert lockstep.outcomes(test) == ("passed", "passed"), lockstep.cases(1)[test].text


def test_a_rank_that_alone_fails_on_an_example_leads(lockstep):
    assert lockstep.outcomes("test_fails_on_one_rank_alone") == ("aborted", "failed")


def test_hypothesis_does_not_shrink(lockstep):
    tried = [(lockstep.folder / "shared" / f"examples-{rank}").read_text().split() for rank in (0, 1)]
    assert tried[0] == tried[1]
    # The failing example, once more for its report, and nothing after it.
    assert tried[0][-1] == tried[0][-2]
    assert [int(number) for number in tried[0][:-2] if int(number) >= 100] == []


def test_hypothesis_keeps_no_database(lockstep):
    assert not list(lockstep.folder.rglob(".hypothesis/examples"))


@pytest.fixture
def examples(run_once):
    """A function that returns the examples of Hypothesis for a seed."""
    suite = {
        "test_seed.py": """
            from hypothesis import given, settings, strategies as st

            @settings(max_examples=3)
            @given(st.integers())
            def test_prints(number):
                with open("examples", "a") as file:
                    print(number, file=file)
        """
    }

    def run(seed, *arguments):
        agent = run_once("seed", suite, pytest_args=arguments, environment=PLUGINS, world_size=1, seed=seed)
        return (agent.folder / "shared" / "examples").read_text()

    return run


@pytest.mark.thorough
def test_different_seeds_give_different_examples(examples):
    assert examples(1) == examples(1)
    assert examples(1) != examples(2)


@pytest.mark.thorough
def test_a_seed_for_hypothesis_is_kept(examples):
    assert examples(1, "--hypothesis-seed=5") == examples(2, "--hypothesis-seed=5")


LOGGING = {
    "test_logging.py": """
        import logging
        import sys

        logger = logging.getLogger("of_a_suite")
        logger.addHandler(logging.StreamHandler())
        logger.addHandler(logging.StreamHandler(sys.stdout))

        def test_logging(rank):
            logger.warning("rank %d is here", rank)
            assert False
    """
}


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [(), ("--capture=sys",), ("-s",)], ids=str)
def test_a_log_handler_created_during_import_prints_to_its_rank(run_agent, arguments):
    run = run_agent(LOGGING, pytest_args=arguments)
    for rank in range(2):
        case = run.cases(rank)["test_logging"]
        assert case.stdout == f"rank {rank} is here\n"
        assert f"rank {rank} is here" in case.stderr
        assert "Logging error" not in case.stderr


@pytest.mark.thorough
def test_a_thread_of_a_library_is_a_notice(run_agent):
    native = """
        import ctypes, ctypes.util
        libc = ctypes.CDLL(None)
        number = ctypes.c_ulong()
        libc.pthread_create(ctypes.byref(number), None, libc.sleep, ctypes.c_void_p(600))
        def test_a(): pass
    """
    agent = run_agent({"test_a.py": native}, world_size=1)
    [notice] = agent.all(Notice)
    assert notice.nodeid == "suite/test_a.py"
    assert notice.text.startswith("Importing this file starts the thread ")
    assert agent.outcomes("test_a") == ("passed",)


@pytest.mark.parametrize("name", quick(1, ["SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGTSTP"]))
def test_a_rank_inherits_which_signals_are_ignored(start_command, name):
    """As with ``nohup``, or in a background job of a shell."""
    number = signal.Signals[name]
    suite = f"""
        import signal

        def test_ignores_it():
            assert signal.getsignal(signal.{name}) is signal.SIG_IGN
            signal.raise_signal(signal.{name})

        def test_takes_the_others():
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    before = signal.signal(number, signal.SIG_IGN)
    try:
        job = start_command({"test_small.py": suite}).go()
    finally:
        signal.signal(number, before)
    job.wait()
    assert job.outcomes("test_ignores_it") == job.outcomes("test_takes_the_others") == ("passed", "passed")


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [(), ("--log-level=DEBUG",), ("-o", "log_cli=true", "--log-cli-level=INFO")])
def test_log_handlers_of_pytest_are_not_changes_of_a_test(run_agent, arguments):
    """pytest adds some to the root logger, and to loggers that do not propagate, in each phase of a test."""
    suite = """
        import logging
        import pytest

        log, alone = logging.getLogger("app"), logging.getLogger("alone")

        @pytest.fixture(scope="module", autouse=True)
        def handler():
            alone.propagate = False
            mine = logging.NullHandler()
            for logger in (alone, logging.root):
                logger.addHandler(mine)
            yield mine
            for logger in (alone, logging.root):
                logger.removeHandler(mine)

        def test_first(caplog):
            log.setLevel("DEBUG")
            alone.addHandler(caplog.handler)
            log.debug("logged")
            assert caplog.messages == ["logged"]

        @pytest.mark.parametrize("number", range(3))
        def test_next(caplog, handler, number):
            assert log.level == logging.NOTSET
            assert handler in alone.handlers and handler in logging.root.handlers
            assert logging.root.handlers.count(caplog.handler) == 1
            assert alone.handlers.count(caplog.handler) <= 1
            log.warning("once")
            assert caplog.messages == ["once"]
    """
    job = run_agent({"test_small.py": suite}, pytest_args=arguments)
    assert {case.outcome for case in job.cases(1).values()} == {"passed"}
    assert {notice.text for notice in job.all(Notice)} == {
        "it changed logger alone; its ranks were replaced",
        "it changed logger app; its ranks were replaced",
    }
    assert len(job.all(GangStarted)) == 2
