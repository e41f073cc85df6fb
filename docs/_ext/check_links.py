"""Check the links of a built site without a network: files and anchors that pages of the site name must exist.

python docs/_ext/check_links.py docs/_build/html
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Addresses that a page links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.anchors = set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        for name, value in attrs:
            if value and (name in ("href", "src")):
                self.links.add(value)
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)


@cache
def page(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text())


def problem(path: Path, link: str) -> str | None:
    """Fault of a link on a page; None for a good one and for those to other sites."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    if not target.is_file():
        return f"there is no {unquote(parts.path)}"
    wanted = unquote(parts.fragment)
    if wanted and target.suffix == ".html" and wanted not in page(target).anchors:
        return f"{target.name} has no #{wanted}"
    return None


def broken(site: Path) -> list[str]:
    """All broken links of a site."""
    found = ((path, link, problem(path, link)) for path in sorted(site.rglob("*.html")) for link in page(path).links)
    return [f"{path.relative_to(site)}: {link}: {fault}" for path, link, fault in found if fault]


if __name__ == "__main__":
    faults = broken(Path(sys.argv[1]))
    print("\n".join(faults) or "All links within the site work")
    sys.exit(1 if faults else 0)
