"""Where the Dockerfiles are, in a checkout and in an installed package."""

from pathlib import Path

PYTHON = "Dockerfile.cuda"
"""For every layer of wheels, torch's among them."""

DEBIAN = "Dockerfile.debian"
"""For the layer of Debian packages."""


def dockerfile_path(name: str = PYTHON) -> Path:
    """A Dockerfile that builds use.

    A wheel carries it beside this module; a checkout (and so an editable install) has it in ``docker/``.

    Args:
        name: Which one.
    """
    here = Path(__file__).resolve().parent
    installed = here / name
    return installed if installed.is_file() else here.parents[2] / "docker" / name
