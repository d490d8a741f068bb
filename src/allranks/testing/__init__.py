"""What the author of a distributed suite imports: skips that say what the surroundings lack, and types.

The names are looked up on first use, so that the orchestrator can read :mod:`allranks.testing.skipcodes` where there
is no torch, and pytest can rewrite :mod:`allranks.testing.fixtures` before anything imports it.
"""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.testing.environment import RankEnvironment
    from allranks.testing.fixtures import SubgroupMaker
    from allranks.testing.skipcodes import SkipCode, kind, multi_gpu, reason
    from allranks.testing.skips import (
        EnvironmentSkip,
        Requirement,
        require_backend_available,
        require_backend_in,
        require_gloo,
        require_gpus,
        require_nccl,
        skip,
        skip_if_odd_world_size,
        skip_if_small_world_size,
        skip_unsupported,
    )

__all__ = [
    "EnvironmentSkip",
    "RankEnvironment",
    "Requirement",
    "SkipCode",
    "SubgroupMaker",
    "kind",
    "multi_gpu",
    "reason",
    "require_backend_available",
    "require_backend_in",
    "require_gloo",
    "require_gpus",
    "require_nccl",
    "skip",
    "skip_if_odd_world_size",
    "skip_if_small_world_size",
    "skip_unsupported",
]

_HOME = MappingProxyType(
    {
        "RankEnvironment": "environment",
        "SubgroupMaker": "fixtures",
        **dict.fromkeys(("SkipCode", "kind", "multi_gpu", "reason"), "skipcodes"),
    }
)
_DEFAULT_HOME = "skips"


def __getattr__(name: str) -> object:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = importlib.import_module(f"{__name__}.{_HOME.get(name, _DEFAULT_HOME)}")
    value: object = getattr(home, name)
    return value
