"""The site of the documentation: ``make docs`` builds it from these pages, which GitHub also shows."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import huefield  # noqa: E402 - from the folder above

project = "huefield"
author = copyright = "The huefield developers"  # noqa: A001 - Sphinx's name
version = release = huefield.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "source_pages", "api_pages"]
root_doc = "index"
exclude_patterns = ["_build", "_ext"]
nitpicky = True

myst_heading_anchors = 4

highlight_language = "bash"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"huefield {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
