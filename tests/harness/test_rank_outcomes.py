"""What each fault of a test comes to: one suite of faults, run once, and one test here for each."""

import pytest

ZOO = {
    "conftest.py": """
        import pytest

        @pytest.fixture
        def from_conftest():
            return "from conftest"
    """,
    "test_zoo.py": """
        import ctypes, os, random, signal, sys, unittest
        import pytest
        import torch
        import torch.distributed as dist
        from allranks.testing import EnvironmentSkip, SkipCode

        RANK = None

        @pytest.fixture(autouse=True)
        def know_rank(rank):
            global RANK
            RANK = rank

        def test_passes(rank, world_size, backend):
            total = torch.tensor([rank + 1.0])
            dist.all_reduce(total)
            assert total.item() == 3.0
            assert (world_size, backend) == (2, "gloo")

        def test_fails_on_rank_1():
            assert RANK == 0, "only rank 0 is right"

        def test_fails_while_the_peer_waits():
            if RANK == 0:
                raise RuntimeError("rank 0 broke first")
            dist.barrier()  # rank 1 waits here

        def test_killed_while_the_peer_waits():
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        def test_segfaults():
            if RANK == 0:
                ctypes.string_at(0)

        def test_aborts():
            os.abort()

        def test_leaves_with_0():
            if RANK == 1:
                os._exit(0)

        def test_leaves_with_3():
            os._exit(3)

        def test_sys_exit_0():
            sys.exit(0)

        def test_sys_exit_5():
            sys.exit(5)

        def test_sys_exit_with_a_list():
            sys.exit(["neither", "number", "nor", "text"])

        def test_sys_exit_76():
            sys.exit(76)

        def test_os_exit_77():
            os._exit(77)

        def test_os_exit_77_on_rank_0():
            if RANK == 0:
                os._exit(77)

        def test_pytest_exit():
            pytest.exit("enough")

        def test_interrupts_itself():
            raise KeyboardInterrupt

        def test_skips():
            pytest.skip("not today")

        @pytest.mark.skip(reason="never")
        def test_marked_skip():
            pass

        def test_unittest_skip():
            raise unittest.SkipTest("from unittest")

        def test_environment_skip():
            raise EnvironmentSkip(SkipCode.ODD_WORLD_SIZE, "2 ranks")

        @pytest.mark.xfail(reason="known")
        def test_xfails():
            assert False

        @pytest.mark.xfail(reason="cured")
        def test_xpasses():
            pass

        @pytest.mark.xfail(reason="cured", strict=True)
        def test_xpasses_strictly():
            pass

        @pytest.fixture
        def broken():
            raise OSError("fixture broke")

        def test_setup_error(broken):
            pass

        @pytest.fixture
        def breaks_later():
            yield
            raise OSError("teardown broke")

        def test_teardown_error(breaks_later):
            pass

        @pytest.fixture
        def exits():
            sys.exit(4)

        def test_fixture_exits(exits):
            pass

        def test_orphan():
            if os.fork() == 0:
                os.setsid()
                while True:
                    signal.pause()

        def test_output_of_a_failure():
            print(f"print of rank {RANK}")
            sys.stderr.write(f"stderr of rank {RANK}\\n")
            os.write(1, b"descriptor of rank %d\\n" % RANK)
            libc = ctypes.CDLL(None)
            libc.puts(b"C of rank %d" % RANK)
            libc.fflush(None)
            assert False

        def test_big_output():
            print("first\\n" + "x" * 1_000_000 + "\\nlast")
            assert False

        def test_big_message():
            raise ValueError("y" * 1_000_000)

        def test_big_skip():
            pytest.skip("z" * 1_000_000)

        def test_strange_output():
            os.write(1, b"\\x00\\x1b[31m\\xff\\xfe]]>&<\\n")
            assert False, "\\x00\\ud800\\uffff"

        SEEN = {}

        def test_random_numbers():
            ours = [random.random(), torch.rand(()).item()]
            both = [None, None]
            dist.all_gather_object(both, ours)
            assert both[0] == both[1]

        def test_shows_random_number():
            print("random", random.random())
            assert False

        @pytest.mark.parametrize("text", ["a::b", "[x]", "ü", "a b", "x/y", ""])
        def test_ids(text):
            pass

        class TestClass:
            def test_in_class(self, from_conftest):
                assert from_conftest == "from conftest"

        class Case(unittest.TestCase):
            def setUp(self):
                self.ready = True

            def test_in_case(self):
                self.assertTrue(self.ready)

            @unittest.skip("by decorator")
            def test_skipped_in_case(self):
                pass

            def test_subtests(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertNotEqual(number, 1)

        def test_destroys_the_process_group():
            dist.destroy_process_group()

        def test_closes_descriptors():
            if RANK == 1:
                os.closerange(3, 51)

        def test_closes_stdout_and_dies():
            sys.__stdout__.close()
            os.closerange(3, 51)

        def test_has_no_sandcastle():
            assert "SANDCASTLE" not in os.environ and "TW_JOB_USER" not in os.environ

        def test_signals_are_the_systems():
            for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGIO):
                assert signal.getsignal(number) is signal.SIG_DFL
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def test_after_all_that(rank):
            dist.barrier()
    """,
}


@pytest.fixture(scope="session")
def zoo(run_once):
    return run_once("zoo", ZOO, environment={"SANDCASTLE": "1", "TW_JOB_USER": "sandcastle"})
def test_zoo(zoo):
    for n in zoo.cases(0):
        print("###", n, zoo.outcomes(n), [ (zoo.cases(r)[n].message[:150], {k:v for k,v in zoo.cases(r)[n].properties.items() if k not in ("at","nodeid","outcome")}) for r in (0,1)])
    print(zoo.folder)
