"""Where the Dockerfile is, in a checkout and in an installed package."""

from pathlib import Path

NAME = "Dockerfile.cuda"


def dockerfile_path() -> Path:
    """The Dockerfile that every build uses.

    A wheel carries it beside this module; a checkout (and so an editable install) has it in ``docker/``.
    """
    here = Path(__file__).resolve().parent
    installed = here / NAME
    return installed if installed.is_file() else here.parents[2] / "docker" / NAME
