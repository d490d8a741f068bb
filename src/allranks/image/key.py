"""Names for images by what went in.

An image has two kinds of key. The *image key* is made from the inputs as they are written down: the recipe, the
base image's id, the text of the requirements, the project's sources, the Dockerfile. It is known without
asking a package index, so a run with unchanged inputs costs two questions to the daemon. The price: a
requirement without a version (``numpy``) keeps the version it had when the image was built; who wants a
newer one writes it down, or removes the image. The *layer key* is made from the wheels themselves, so
two recipes that resolve to the same wheels share their layers.
"""

import hashlib
import json
from dataclasses import asdict

from allranks.image.recipe import Recipe

_SCHEMA = 1
_LENGTH = 12


def digest(*parts: object) -> str:
    """A hash of values that JSON can hold, the same in every process and on every host."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def image_key(recipe: Recipe, *, base_id: str, dockerfile: str) -> str:
    """The tag of an image.

    Args:
        recipe: What goes in.
        base_id: Id of the base image in the daemon.
        dockerfile: Text of the Dockerfile.
    """
    inputs = asdict(recipe)
    for not_content in ("name", "base", "requirements", "project"):
        del inputs[not_content]
    return digest(_SCHEMA, inputs, base_id, dockerfile)[:_LENGTH]


def layer_key(*, parent_id: str, content: tuple[str, ...], dockerfile: str) -> str:
    """The tag of one layer of an image.

    Args:
        parent_id: Id of the image below.
        content: What goes in: of each wheel the identity that :func:`allranks.image.wheel.identity` tells, or the
            names of Debian packages.
        dockerfile: Text of the Dockerfile.
    """
    return digest(_SCHEMA, parent_id, sorted(content), dockerfile)[:_LENGTH]
