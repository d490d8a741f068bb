import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "agent"))  # the helpers, which importlib mode does not find

from agent_fixtures import (  # noqa: F401 - fixtures
    agent_fork_server,
    launch_fork,
    run_agent,
    run_nodes,
    start_agent,
    start_nodes,
)
