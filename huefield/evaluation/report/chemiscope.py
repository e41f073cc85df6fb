"""The JavaScript program of chemiscope, for pages that work without a network.

chemiscope documents its JavaScript (``Chemiscope.DefaultVisualizer.load``) and its JSON format, but its Python package
has no public function that gives the program: ``write_input`` writes data only, ``show`` needs a notebook, and
``headless`` needs a browser. The program is therefore read from the file that ``chemiscope.sphinx`` and
``chemiscope.headless`` themselves use. This module is the only one that depends on its place.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from huefield.support.errors import HuefieldError

SCRIPT = Path("sphinx", "static", "chemiscope.min.js")
NOTICES = Path("static", "chemiscope-widget.mjs.LICENSE.txt")
NEEDED = ("DefaultVisualizer", "StructureVisualizer")
"""Names of the JavaScript API that ``assets/viewer.js`` uses."""
CURE = "install chemiscope 1.1"


class NoViewerError(HuefieldError):
    """The structure viewer is not available; the message says why and what to do."""


@dataclass(frozen=True)
class ChemiscopeProgram:
    """The program and its licences, which have to accompany it."""

    script: str
    notices: str


def chemiscope_program() -> ChemiscopeProgram:
    """Read the program without importing the Python package, which would take a second."""
    spec = find_spec("chemiscope")
    if spec is None or spec.origin is None:
        raise NoViewerError(f"chemiscope is not installed: {CURE}")
    package = Path(spec.origin).parent
    return ChemiscopeProgram(_script(package), _notices(package))


def _script(package: Path) -> str:
    path = package / SCRIPT
    if not path.is_file():
        raise NoViewerError(f"chemiscope {_version()} has no file {SCRIPT}: {CURE}")
    try:
        program = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoViewerError(f"{path} cannot be read ({error}): {CURE}") from error
    if missing := [name for name in NEEDED if name not in program]:
        raise NoViewerError(f"{SCRIPT} of chemiscope {_version()} has no {missing[0]}: {CURE}")
    return program


def _notices(package: Path) -> str:
    try:
        listed = distribution("chemiscope").files or []
    except PackageNotFoundError:
        listed = []
    licences = [Path(str(file.locate())) for file in listed if file.name == "LICENSE"]
    found = [path for path in (*licences, package / NOTICES) if path.is_file()]
    if not found:
        raise NoViewerError(
            f"the licence of chemiscope {_version()}, which a page with its program must contain, is missing: {CURE}"
        )
    return "\n\n".join(path.read_text(encoding="utf-8", errors="replace") for path in found)


def _version() -> str:
    try:
        return distribution("chemiscope").version
    except PackageNotFoundError:
        return "of unknown version"
