"""Seeds of the random generators that a process has loaded."""

import sys
from random import seed as _seed_python  # now, as tests patch it


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, on all devices; of these, those that are loaded.

    Args:
        seed: At most 32 bits, NumPy's limit.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        # Not always: it takes 0.7 ms, as each kind of accelerator defers its seeding, and formats a stack for that.
        torch.manual_seed(seed)
    seed_generators(seed)


def seed_generators(seed: int) -> None:
    """Seed Python, NumPy and torch, on the CPU; of these, those that are loaded.

    Args:
        seed: At most 32 bits, NumPy's limit.
    """
    _seed_python(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
