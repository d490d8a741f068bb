"""``[slurm]`` of the matrix file, and the user's own file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from allranks.matrix.keys import key, many, text, whole

_EXTRA = 'Write extra = ["--{}=…"], or set SBATCH_{} where allranks runs.'


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """The engine that submits jobs to a SLURM cluster; the user's file `allranks/slurm.toml` takes precedence."""

    extra: tuple[str, ...] = key(
        many(text()),
        "Arguments for sbatch, such as the partition and the account; those of the user's own file come last.",
        default=(),
        example=["--partition=gpu", "--account=my-project"],
    )
    spool: str | None = key(
        text(),
        "The folder of the jobs, which this host and all nodes share.",
        default=None,
        example="/shared/me/allranks",
        unset="one in the user's cache",
    )
    jobs: int = key(whole(1), "The maximum number of queued and running jobs.", default=100, example=20)
    container: str | None = key(
        text(
            r"^(apptainer|charliecloud|docker|pyxis):.*\S",
            "names no image of a known runtime",
            'Write one of "apptainer:IMAGE", "charliecloud:IMAGE", "docker:IMAGE", "pyxis:IMAGE".',
        ),
        "The container of jobs, as RUNTIME:IMAGE, which all nodes must see; paths must be absolute.",
        default=None,
        example="apptainer:/shared/me/torch.sif",
        unset="an environment that allranks makes",
    )

    RETIRED: ClassVar[Mapping[str, str]] = {
        name: _EXTRA.format(name, name.upper()) for name in ("partition", "account", "qos")
    }


TABLES = {"slurm": Slurm}
