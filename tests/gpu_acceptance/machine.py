"""What a machine is: its GPUs as torch and NVML have them, and what is installed.

``python -m gpu_acceptance.machine`` prints it as JSON, in a process of its own: torch may hang or crash.
"""

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec

from allranks.agent import kernel
from gpu_acceptance.pretence import PRETENDS
from gpu_acceptance.verdict import PRETENDED

MODULES = ("docker", "expecttest", "numpy", "pynvml", "pytest", "rich")
"""What parts may need, or do without."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as torch or NVML describes it."""

    uuid: str
    name: str
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is there.

    Attributes:
        gpus: As torch has them.
        by_nvml: As allranks has them, by NVML.
        free: MiB of each GPU, of `gpus`, that nothing uses.
        torch_trouble: Why torch has none.
        nvml_trouble: Why NVML has none.
        kernel_trouble: Why allranks cannot run on its kernel.
        lacking: Those of :data:`MODULES` that cannot be imported.
        pretended: True if all of this is pretended.
    """

    python: str
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpus: tuple[Gpu, ...] = ()
    by_nvml: tuple[Gpu, ...] = ()
    free: tuple[int, ...] = ()
    torch_trouble: str = ""
    nvml_trouble: str = ""
    kernel_trouble: str = ""
    lacking: tuple[str, ...] = ()
    pretended: bool

    @property
    def title(self) -> str:
        """The machine in one line."""
        names = sorted({gpu.name for gpu in self.gpus})
        what = f"{len(self.gpus)} x {', '.join(names)}" if self.gpus else "no GPU"
        if self.pretended:
            what = f"{PRETENDED}: no GPU, {len(self.gpus)} stand-ins"
        versions = {"torch": self.torch, "CUDA": self.cuda, "NCCL": self.nccl, "Python": self.python}
        software = ", ".join(f"{name} {version or 'none'}" for name, version in versions.items())
        return f"{what}; {software}; {platform.release()}"

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        """What :func:`main` has printed.

        Raises:
            ValueError: It is not that.
        """
        fields = json.loads(text)
        for name in ("gpus", "by_nvml"):
            fields[name] = tuple(Gpu(**gpu) for gpu in fields[name])
        return cls(**fields | {name: tuple(fields[name]) for name in ("free", "lacking")})

    def to_json(self) -> str:
        """As :meth:`from_json` takes it."""
        return json.dumps(asdict(self))


def look() -> Machine:
    """Look at this machine."""
    lacking = tuple(name for name in MODULES if not _can_import(name))
    python = platform.python_version()
    pretended = PRETENDS in os.environ
    by_nvml, nvml_trouble = _ask_nvml()
    if find_spec("torch") is None:
        trouble = "torch is not installed"
        return Machine(
            python=python,
            by_nvml=by_nvml,
            kernel_trouble=kernel.check().refusal,
            lacking=lacking,
            torch_trouble=trouble,
            pretended=pretended,
        )
    import torch

    gpus, free, trouble = _ask_torch()
    return Machine(
        python=python,
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        nccl="pretended" if pretended else _nccl_version(),
        gpus=gpus,
        by_nvml=by_nvml,
        free=free,
        torch_trouble=trouble,
        nvml_trouble=nvml_trouble,
        kernel_trouble=kernel.check().refusal,
        lacking=lacking,
        pretended=pretended,
    )


def _can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _ask_nvml() -> tuple[tuple[Gpu, ...], str]:
    from allranks.engines.gpus import nvidia_gpus

    try:
        found = nvidia_gpus(has_cards=False)
    except Exception as error:  # noqa: BLE001 - whatever the driver says is the machine's
        return (), str(error)
    return tuple(Gpu(uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib) for gpu in found), ""


def _ask_torch() -> tuple[tuple[Gpu, ...], tuple[int, ...], str]:
    import torch

    from gpu_acceptance.device import device

    gpu = device()
    try:
        if not gpu.count():
            built = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
            return (), (), f"torch {torch.__version__} ({built}) has no GPU"
        numbers = range(gpu.count())
        described = [gpu.describe(number) for number in numbers]
        found = tuple(
            Gpu(uuid=gpu.uuid(number), name=name, memory_mib=memory)
            for number, (name, memory) in zip(numbers, described, strict=True)
        )
        return found, tuple(gpu.memory(number)[0] for number in numbers), ""
    except Exception as error:  # noqa: BLE001 - whatever CUDA says is the machine's
        return (), (), f"torch {torch.__version__}: {type(error).__name__}: {error}"


def _nccl_version() -> str:
    import torch

    if not torch.distributed.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


if __name__ == "__main__":
    print(look().to_json())
