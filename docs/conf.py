"""How Sphinx builds the site: `make docs`."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "spgrad"
author = "The authors of spgrad"
copyright = "the authors of spgrad"  # noqa: A001  # the name that Sphinx reads
release = re.search(
    r'^version = "(.*)"', (HERE.parent / "pyproject.toml").read_text(), re.MULTILINE
)[1]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "reference",
    "figures",
]
exclude_patterns = ["extensions", "**/.ipynb_checkpoints"]
default_role = "py:obj"  # a link where the name is in the reference
suppress_warnings = ["ref.python"]  # napoleon takes words of docstrings for names of types

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "docs-cache")
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [
    ("Cost", "notes_style"),
    ("Gradient", "notes_style"),
    ("Source", "notes_style"),
    ("Shape", "notes_style"),
    ("Shapes", "notes_style"),
]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "pydata_sphinx_theme"
html_title = "spgrad"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {"examples": []}  # no pages are below it
html_theme_options = {
    "logo": {"text": "spgrad"},
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc"], "support": []},  # its table needs the width
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}
