"""Links to files of the repository lead to pages of the site with their source.

On GitHub a link such as ``[`Gaussian.variance`](../huefield/core/gaussian.py)`` shows the file. On the site it leads to
a page with the highlighted file, at the line where the function of the link begins.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import find_lexer_class_for_filename
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "source"
"""Folder of the site for pages with source."""


def line_of(symbol: str, text: str) -> int | None:
    """Number of the line that defines a function, class or method such as ``Gaussian.variance``."""
    start, found = 0, None
    for name in symbol.split("."):
        found = re.compile(rf"^[ ]*(?:class|def) {re.escape(name)}\b", re.MULTILINE).search(text, start)
        if found is None:
            return None
        start = found.end()
    return text.count("\n", 0, found.start()) + 1 if found else None


def source_page(path: Path, label: str = "") -> str:
    """Address on the site of a file of the repository, at the definition that the label of a link names."""
    line = line_of(label, path.read_text()) if path.suffix == ".py" and re.fullmatch(r"[\w.]+", label) else None
    return f"{FOLDER}/{path.relative_to(ROOT).as_posix()}.html" + (f"#line-{line}" if line else "")


class LinksToSource(SphinxTransform):
    """Replace downloads of the repository's files by links to their pages."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Change the links of one page. Those to Markdown outside of docs are references to documents."""
        here = Path(self.env.doc2path(self.env.docname)).parent
        files = [(link, link["reftarget"]) for link in self.document.findall(addnodes.download_reference)]
        pages = [link for link in self.document.findall(addnodes.pending_xref) if link["refdomain"] == "doc"]
        files += [(link, link["reftarget"] + ".md") for link in pages if link["reftarget"] not in self.env.found_docs]
        for link, target in files:
            path = (here / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT):
                self.env.note_dependency(str(path))  # its lines may move
                link.replace_self(link_to(self.app, path, link.astext(), link.children, self.env.docname))


def link_to(app: Sphinx, path: Path, label: str, children: list[nodes.Node], docname: str) -> nodes.reference:
    """A link from a page to the source of a file, whose page is then made."""
    app.env.__dict__.setdefault("source_files", {}).setdefault(docname, set()).add(path)
    upwards = "../" * docname.count("/")
    return nodes.reference("", "", *children, internal=True, refuri=upwards + source_page(path, label))


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Pages with the files that are linked."""
    style = HtmlFormatter(cssclass="highlight", lineanchors="line", linenos="inline", anchorlinenos=True)
    for path in sorted(set().union(*getattr(app.env, "source_files", {}).values())):
        name = path.relative_to(ROOT).as_posix()
        lexer = find_lexer_class_for_filename(path.name) or TextLexer
        code = highlight(path.read_text(), lexer(), style)
        yield f"{FOLDER}/{name}", {"title": name, "body": f"<h1>{name}</h1>\n{code}"}, "page.html"


def forget(app: Sphinx, env: Any, docname: str) -> None:
    """Forget the links of a page that is read again."""
    getattr(env, "source_files", {}).pop(docname, None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_transform(LinksToSource)
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", pages)
    return {"version": "1", "parallel_read_safe": False}
