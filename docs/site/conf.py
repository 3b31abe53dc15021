"""Sphinx: how the pages in docs/ become a site, which `make docs` builds and checks."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

project = "quantattn"
release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
version = release
author = "the quantattn authors"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "links", "reference"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]

# Pages are written for GitHub too: plain CommonMark with tables, links to files, anchors made from headings.
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings: list[str] = []

# Docstrings put names between single backticks; one that is known becomes a link, any other is code.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Layouts", "params_style")]

html_theme = "furo"
html_title = f"quantattn {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
highlight_language = "none"  # of blocks that name none: commands and what they print
pygments_style = "friendly"
pygments_dark_style = "github-dark"
