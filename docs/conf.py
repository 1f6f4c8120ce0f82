"""Settings of the documentation site, which Sphinx reads: `make docs`, which is docs/website.py."""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import attnlab

project = "attnlab"
version = release = attnlab.__version__
project_copyright = "MIT licence"

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]  # directives inside directives: a class and its methods
myst_heading_anchors = 4  # named as code hosts do, so that links work there and here

html_theme = "furo"
html_title = "attnlab"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # it is fetched page by page, which no browser does from a disk
pygments_style = "friendly"
pygments_dark_style = "monokai"
add_module_names = False
python_maximum_signature_line_length = 88


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _types_are_text)


def _types_are_text(app: Sphinx, tree: nodes.document) -> None:
    """The types in a signature link nowhere: `Log` says not whose, and PyTorch is elsewhere."""
    for link in [*tree.findall(pending_xref)]:
        if link.get("refdomain") == "py":
            link.replace_self(link.children)
