"""The API reference: which names it has, and where names in docstrings lead.

A page of docs/api shows what its package exports. Each object is described once: those of the top level there, and the
others where their package exports them. Docstrings name objects by any of their places.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from source_pages import ROOT, line_of, link_to
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring

import huefield


def read_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn sections such as Args into fields. Attributes have none: a colon in their text is only a colon."""
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, obj, options).lines()


def describe_settings(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Add the meaning of the keys of a configuration, which is in its fields."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, BaseModel):
        fields = {key: field.description for key, field in obj.model_fields.items() if field.description}
        lines += [f":param {key}: {text}" for key, text in fields.items()]


ARRAY_LIKE = re.compile(r"_Buffer \| .*?_NestedSequence\[complex \| bytes \| str\]")
"""``numpy.typing.ArrayLike``, as Sphinx spells it out."""


def shorten(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A signature without bounds of numbers, which error messages tell, and with short names of types."""
    return tuple(  # type: ignore[return-value]
        None if text is None else ARRAY_LIKE.sub("ArrayLike", re.sub(r"~?numpy\._typing[\w.]*\.", "", plain(text)))
        for text in (arguments, result)
    )


def plain(text: str) -> str:
    """``Annotated[X, ...]`` as ``X``."""
    while found := re.search(r"(?:~?typing\.)?Annotated\[", text):
        depth, comma = 0, None
        for end in range(found.end(), len(text)):
            depth += (text[end] in "[(") - (text[end] in ")]")
            comma = end if comma is None and depth == 0 and text[end] == "," else comma
            if depth < 0:
                break
        text = text[: found.start()] + text[found.end() : comma] + text[end + 1 :]
    return text


def is_foreign(obj: Any) -> bool:
    """Whether an object belongs to another library, such as ``typing.Annotated``."""
    return not str(getattr(obj, "__module__", None) or "").startswith("huefield")


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Whether autodoc leaves out a member; None for its own decision."""
    if what == "module":
        page = app.env.current_document.docname
        elsewhere = page != "api/huefield" and name in huefield.__all__
        return True if is_foreign(obj) or elsewhere else None
    return True if name in ("model_config", "model_post_init") else None


def resolve(app: Sphinx, env: BuildEnvironment, node: Any, child: nodes.Element) -> nodes.Node | None:
    """The place of a name that is not described as it is written: its public page, else its source.

    Names of other libraries stay text, as their sites cannot be asked without a network. None, a warning, otherwise.
    """
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    if "." in target and not target.startswith("huefield.") and not target[0].isupper():
        return child
    domain = env.domains["py"]
    public = public_name(target, domain.objects)
    if public is not None:
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, child)
    path = source_file(target, str(node.get("py:module") or "huefield"))
    if path is None:
        return None if node.get("refwarn") else child  # types in signatures may be of other libraries
    return link_to(app, path, target.rsplit(".", 1)[-1], [child], node["refdoc"])


def public_name(target: str, names: Any) -> str | None:
    """The described object with this name, or the only one of this name without its modules."""
    short = re.sub(r"^(?:[a-z_0-9]+\.)+", "", target)
    found = [name for name in names if f".{name}".endswith(f".{short}")]
    return found[0] if len(found) == 1 or (found and short in huefield.__all__) else None


@cache
def source_file(target: str, package: str) -> Path | None:
    """The module with this name, or the first one of a package that defines the name."""
    words = target.split(".")
    for length in range(len(words), 1, -1):
        module = ROOT.joinpath(*words[:length])
        for path in (module.with_suffix(".py"), module / "__init__.py"):
            if path.exists():
                return path
    folder = ROOT.joinpath(*package.split("."))
    files = sorted((folder if folder.is_dir() else folder.parent).rglob("*.py"))
    return next((path for path in files if line_of(words[-1], path.read_text())), None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-docstring", describe_settings)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": False}
