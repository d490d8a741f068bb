"""Pushes to repositories that call dist.yml, on act."""

import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflows")]

from act_runner import Runner, runner_here  # noqa: E402 - beside this file
from callers import CALL, RECIPE, command, lay  # noqa: E402
from on_act import LABEL, ActRun, Line, run_on_act, see_nothing  # noqa: E402

Push = Callable[..., ActRun]


@pytest.fixture(scope="session")
def runner(docker_client, tmp_path_factory) -> Runner:
    return runner_here(docker_client, tmp_path_factory.mktemp("act"))


@pytest.fixture(scope="session")
def image(tmp_path_factory) -> str:
    """The image that other tests' cells run in, too."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "matrix.toml").write_text(RECIPE)
    return command(sys.executable, "-m", "allranks", "build", folder=folder).splitlines()[-1].removeprefix("cpu: ")


@pytest.fixture
def name() -> str:
    """Begins the names of a run's artifacts, and ends the name of its run."""
    return f"t{secrets.token_hex(3)}"


@pytest.fixture
def nothing_is_left(left_of, name, docker_client) -> Iterator[None]:
    yield
    assert left_of(f"github-1-1-{name}") == []
    assert docker_client.containers.list(all=True, filters={"label": LABEL}) == []


@pytest.fixture
def push(runner, image, name, tmp_path, nothing_is_left) -> Push:  # noqa: ARG001 - looks at the end
    """``push(matrix, {"other": SUITE}, select="")``: what comes of a push to a repository that calls dist.yml."""

    def run(
        matrix: str,
        suites: dict[str, str],
        *,
        select: str = "",
        watch: Callable[[Line], object] = see_nothing,
    ) -> ActRun:
        repository = tmp_path / "repository"
        (repository / ".github" / "workflows").mkdir(parents=True)
        (repository / ".github" / "workflows" / "ci.yml").write_text(CALL.format(name=name, select=f'"{select}"'))
        lay(repository, matrix.replace("{image}", image), suites)
        return run_on_act(runner, repository, tmp_path / "act", workflow=".github/workflows/ci.yml", watch=watch)

    return run
