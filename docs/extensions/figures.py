"""Checks in the build of the site that each notebook of the gallery drew a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GALLERY = "gallery/"
LOGGER = logging.getLogger(__name__)


def _require_figure(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Warns, which ends the build, where the cells of a notebook gave no picture."""
    executed = app.config.nb_execution_mode != "off"
    if not executed or not name.startswith(GALLERY) or name == f"{GALLERY}index":
        return
    if not any("jupyter_execute" in image["uri"] for image in doctree.findall(nodes.image)):
        LOGGER.warning("no cell of the notebook drew a picture", location=name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls it."""
    app.connect("doctree-resolved", _require_figure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
