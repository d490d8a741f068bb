"""The fork server's pytest session: whether it can begin, and how it ended."""

import os
import sys
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import pytest

import allranks
from allranks.agent.collect.fork_server import Supervisor
from allranks.agent.collect.pytest_options import REFUSED_BY_PYTEST, refusal_in
from allranks.agent.collect.pytest_session import ServerPlugin, exit_status
from allranks.agent.environment_skips import watch_for_sandcastle_skips
from allranks.agent.program import SessionEnded
from allranks.protocol.config import AgentConfig, Folders
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten
from allranks.protocol.records import AgentFailed, CollectionFailed, FailureKind


def run_session(config: AgentConfig, folders: Folders, supervisor: Supervisor) -> SessionEnded | None:
    """Collect the suite and serve the supervisor; returns how the session ended, None if it never got to run.

    Args:
        config: The job.
        folders: Its folders.
        supervisor: The supervisor of this process.
    """
    if (why_not := _obstacle(config, folders)) is not None:
        supervisor.write(why_not)
        return None
    plugin = ServerPlugin(config, folders, supervisor)
    # Paths on the command line are relative to the code folder; tests run in the shared folder.
    os.chdir(folders.code)
    try:
        with watch_for_sandcastle_skips():
            code: int = pytest.main(plugin.arguments, plugins=[plugin])
    except BrokenPipeError:
        raise
    except (SystemExit, pytest.exit.Exception) as left:
        if plugin.own_status is None:
            raise
        code = exit_status(left, plugin.own_status)
    except Exception as error:  # noqa: BLE001 - pytest passes on errors of hooks at the end of its session
        message = f"pytest, or a hook of the suite's, broke down: {type(error).__name__}: {error}"
        text = shorten(traceback.format_exc())
        supervisor.write(AgentFailed(message=shorten(message, MESSAGE_LIMIT), text=text, kind=FailureKind.SUITE))
        return None
    if plugin.was_refused:
        return None
    if not plugin.has_collected:
        supervisor.write(_why_not_collected(code, _log(folders)))
        return None
    if code is pytest.ExitCode.INTERNAL_ERROR:
        message = "pytest, or a hook of the suite's, broke down beside the tests"
        supervisor.write(AgentFailed(message=message, text=shorten(_log(folders)), kind=FailureKind.SUITE))
        return None
    return plugin.ended_with(int(code))


def _obstacle(config: AgentConfig, folders: Folders) -> AgentFailed | CollectionFailed | None:
    """Why pytest is not to start: there is no suite, or another version of our plugin would be loaded."""
    if absent := [path for path in config.paths if not (folders.code / path).exists()]:
        # pytest would collect everything below the code folder.
        return CollectionFailed(text=f"There is no {', '.join(absent)} in the code of this job.")
    with suppress(PackageNotFoundError):
        if (installed := version("allranks")) != allranks.__version__:
            both = f"allranks {installed} is installed in the job's Python, and allranks {allranks.__version__}"
            remedy = "Install the same version in both places, or leave it out of the job's packages."
            return AgentFailed(message=f"{both} runs the job. {remedy}", kind=FailureKind.USAGE)
    return None


def _why_not_collected(code: int, output: str) -> AgentFailed | CollectionFailed:
    """Why pytest has collected nothing: a fault of its arguments, or of the suite."""
    if code == pytest.ExitCode.USAGE_ERROR and (refusal := refusal_in(output)):
        return AgentFailed(message=refusal, text=REFUSED_BY_PYTEST, kind=FailureKind.USAGE)
    return CollectionFailed(text=shorten(output))


def _log(folders: Folders) -> str:
    """The output of pytest: only there does it explain a usage error, or an exit during an import."""
    sys.stdout.flush()
    return (folders.results / "agent.log").read_text(encoding="utf-8", errors="replace")[-8000:]
