"""torch's distributed autograd: its own functions with types, and in one place all that has no public name."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import autograd

context = autograd.context
backward: Callable[..., None] = autograd.backward  # type: ignore[attr-defined]
get_gradients: Callable[[int], dict[Tensor, Tensor]] = autograd.get_gradients  # type: ignore[attr-defined]

release_context: Callable[[int], None] = autograd._release_context  # type: ignore[attr-defined]  # noqa: SLF001
greatest_id: Callable[[], int] = autograd._get_max_id  # type: ignore[attr-defined]  # noqa: SLF001
debug_info: Callable[[], dict[str, str]] = autograd._get_debug_info  # type: ignore[attr-defined]  # noqa: SLF001


def new_context() -> int:
    """A context that only ``release_context`` ends."""
    return int(autograd._new_context()._context_id())  # type: ignore[attr-defined]  # noqa: SLF001


def current_context() -> int:
    """The context of this thread.

    Raises:
        RuntimeError: It has none.
    """
    return int(autograd._current_context()._context_id())  # type: ignore[attr-defined]  # noqa: SLF001


def _retrieve(context: int) -> Any:  # noqa: ANN401 - torch exports no type for it
    return autograd._retrieve_context(context)  # type: ignore[attr-defined]  # noqa: SLF001


def knows(context: int) -> bool:
    """Whether this worker has the context."""
    try:
        return bool(_retrieve(context)._context_id() == context)  # noqa: SLF001 - as all here
    except RuntimeError:
        return False


def sends(context: int) -> list[Any]:
    """The nodes for the messages that this worker has sent."""
    return list(_retrieve(context)._send_functions().values())  # noqa: SLF001


def receives(context: int) -> list[Any]:
    """The nodes for the messages that this worker has received."""
    return list(_retrieve(context)._recv_functions().values())  # noqa: SLF001


def known_workers(context: int) -> set[int]:
    """The numbers of the workers that this one has called in the context."""
    return set(_retrieve(context)._known_worker_ids())  # noqa: SLF001
