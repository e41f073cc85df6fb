"""Structures to turn and look at in a page: what chemiscope needs, and its program.

The data are written in chemiscope's JSON format (https://chemiscope.org/docs/json.html) without importing its Python
package, which would take a second; the program is read out of that package. Numbers that are not known are null here,
since JSON has no NaN; ``page/viewer.js`` turns them back.
"""

import json
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float, Shaped

from huefield.core.structure import Block, Structure
from huefield.evaluation.report.selection import Selection, StructureScores
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError

SCRIPT = Path("sphinx", "static", "chemiscope.min.js")
NOTICES = Path("static", "chemiscope-widget.mjs.LICENSE.txt")
NEEDED = ("DefaultVisualizer", "StructureVisualizer")
"""What ``page/viewer.js`` asks the program for."""
ATOM_UNCERTAINTY, ATOM_ERROR = "force uncertainty", "force error"
IN_FORCE_UNITS = " (eV/Å)"
"""Behind the names of properties of atoms: beside their scale of colours chemiscope writes names, but not units."""
COLORED_TO = 0.98
"""Quantile of the atoms at which the scale of colours ends, so that a single outlier does not wash out the rest."""


class NoViewerError(HuefieldError):
    """There is no program to show structures with; the message says why, and what to do."""


@dataclass(frozen=True, eq=False)
class Property:
    """Numbers or words, one for each structure or each atom."""

    target: str
    values: Float[np.ndarray, " n"] | tuple[str, ...]
    units: str = ""
    description: str = ""

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return any(self.values) if isinstance(self.values, tuple) else bool(np.isfinite(self.values).any())

    def as_json(self) -> dict[str, Any]:
        """In chemiscope's form."""
        words = {"units": self.units, "description": self.description}
        values = list(self.values) if isinstance(self.values, tuple) else _digits(self.values)
        return {"target": self.target, "values": values} | {name: text for name, text in words.items() if text}


@dataclass(frozen=True)
class Map:
    """A scatter of errors against uncertainties."""

    label: str
    x: str
    y: str
    logarithmic: bool

    def as_json(self) -> dict[str, Any]:
        """In chemiscope's form."""
        scale = "log" if self.logarithmic else "linear"
        return {"x": {"property": self.x, "scale": scale}, "y": {"property": self.y, "scale": scale}}


@dataclass(frozen=True)
class Coloring:
    """A way to colour atoms."""

    label: str
    property: str
    highest: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """In chemiscope's form."""
        if self.property == "element":
            return {"property": self.property}
        return {"property": self.property, "min": 0.0, "max": self.highest, "palette": "viridis"}


@dataclass(frozen=True, eq=False)
class Viewer:
    """What is shown of some structures, and how."""

    name: str
    structures: Block
    properties: dict[str, Property]
    maps: tuple[Map, ...] = field(default=())
    """Empty where nothing was both predicted and observed."""
    colorings: tuple[Coloring, ...] = field(default=())
    first: int = 0
    """The structure that is shown at first."""

    def as_json(self) -> str:
        """The whole of it: chemiscope's data set and what can be chosen in the page."""
        color = {"property": "energy error" if "energy error" in self.properties else "atoms", "palette": "cividis"}
        drawn = [{"color": self.colorings[0].as_json(), "unitCell": bool(self.structures.pbc.any())}]
        chosen = {"map": {**self.maps[0].as_json(), "color": color}} if self.maps else {}
        dataset = {
            "meta": {"name": self.name},
            "structures": [_structure(structure) for structure in self.structures],
            "environments": _environments(self.structures),
            "properties": {name: found.as_json() for name, found in self.properties.items()},
            "settings": {"target": "structure", "pinned": [self.first], "structure": drawn, **chosen},
        }
        maps, colorings = ({c.label: c.as_json() for c in choices} for choices in (self.maps, self.colorings))
        return json.dumps(
            {"dataset": dataset, "maps": maps, "colorings": colorings}, allow_nan=False, separators=(",", ":")
        )


def make_viewer(predictions: Predictions, selection: Selection) -> Viewer:
    """Chosen structures with their errors and uncertainties, the one with the largest error in front."""
    block = predictions.structures
    scores = StructureScores(predictions)
    kept = np.repeat(np.isin(np.arange(len(block)), selection.indices), block.sizes)
    atoms = {
        ATOM_UNCERTAINTY + IN_FORCE_UNITS: Property(
            "atom", scores.atom_uncertainty[kept], description="standard deviation of the vector"
        ),
        ATOM_ERROR + IN_FORCE_UNITS: Property(
            "atom", scores.atom_error[kept], description="length of the difference of the vectors"
        ),
    }
    properties = _structure_properties(scores, selection) | atoms
    known = {name: found for name, found in properties.items() if found.known}
    errors = [known[name].values for name in ("force RMSE", "energy error") if name in known]
    return Viewer(
        predictions.name,
        block.block(selection.indices),
        known,
        _maps(known),
        _colorings(known),
        int(np.nanargmax(errors[0])) if errors else 0,
    )


def chemiscope_program() -> str:
    """The JavaScript of chemiscope, with nothing left out."""
    path = _package() / SCRIPT
    made_of = "which the viewer of a report is made of: install chemiscope 1.1"
    if not path.is_file():
        raise NoViewerError(f"chemiscope {_version()} has no file {SCRIPT}, {made_of}")
    try:
        program = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoViewerError(f"{path} cannot be read ({error}), {made_of}") from error
    if missing := [name for name in NEEDED if name not in program]:
        raise NoViewerError(f"{SCRIPT} of chemiscope {_version()} has no {missing[0]}, {made_of}")
    return program


def chemiscope_notices() -> str:
    """Whose work the program is: the licence of chemiscope and the notices of what it contains."""
    try:
        listed = distribution("chemiscope").files or []
    except PackageNotFoundError:
        listed = []
    licences = [str(file.locate()) for file in listed if file.name == "LICENSE"]
    found = [path for path in (*map(Path, licences), _package() / NOTICES) if path.is_file()]
    if not found:
        raise NoViewerError(
            f"the licence of chemiscope {_version()}, without which the viewer of a report must not hold its program, "
            "is not there: install chemiscope 1.1"
        )
    return "\n\n".join(path.read_text(encoding="utf-8", errors="replace") for path in found)


def _version() -> str:
    try:
        return distribution("chemiscope").version
    except PackageNotFoundError:
        return "of unknown version"


def _package() -> Path:
    spec = find_spec("chemiscope")
    if spec is None or spec.origin is None:
        raise NoViewerError("chemiscope is not installed, but the viewer of a report is made of it: install chemiscope")
    return Path(spec.origin).parent


def _structure_properties(scores: StructureScores, selection: Selection) -> dict[str, Property]:
    """What is known of each structure; maps begin with the first ones."""
    block, at = scores.predictions.structures, selection.indices

    def of(values: Shaped[np.ndarray, " n"], units: str, description: str) -> Property:
        return Property("structure", np.asarray(values, float)[at], units, description)

    return {
        "force uncertainty (rms)": of(scores.force_uncertainty, "eV/Å", "root of the mean variance of the components"),
        "force RMSE": of(scores.force_error, "eV/Å", "root mean square error of the components"),
        "energy uncertainty": of(scores.energy_uncertainty, "eV", "standard deviation"),
        "energy error": of(scores.energy_error, "eV", "absolute"),
        "largest force uncertainty": of(scores.worst_force_uncertainty, "eV/Å", "of the most uncertain atom"),
        "largest force error": of(scores.worst_force_error, "eV/Å", "of the atom that is farthest off"),
        "atoms": of(block.sizes, "", "how many there are"),
        "number": of(block.frames, "", "of the structure in its file or store, from 0"),
        "group": Property("structure", tuple(block.groups[i] for i in at)),
    }


def _maps(properties: dict[str, Property]) -> tuple[Map, ...]:
    names = {
        "forces": ("force uncertainty (rms)", "force RMSE"),
        "largest force": ("largest force uncertainty", "largest force error"),
        "energies": ("energy uncertainty", "energy error"),
    }
    return tuple(
        Map(label, x, y, _positive(properties[x]) and _positive(properties[y]))
        for label, (x, y) in names.items()
        if x in properties and y in properties
    )


def _positive(found: Property) -> bool:
    values = np.asarray(found.values, float)
    return bool(np.all(values[np.isfinite(values)] > 0))


def _colorings(properties: dict[str, Property]) -> tuple[Coloring, ...]:
    found = []
    for label in (ATOM_UNCERTAINTY, ATOM_ERROR):
        name = label + IN_FORCE_UNITS
        if name in properties:
            highest = float(np.nanquantile(np.asarray(properties[name].values, float), COLORED_TO))
            if highest > 0:
                found.append(Coloring(label, name, float(f"{highest:.2g}")))
    return (*found, Coloring("element", "element"))


def _structure(structure: Structure) -> dict[str, Any]:
    names = [chemical_symbols[number] for number in structure.atomic_numbers]
    repeated = structure.pbc.any() and abs(np.linalg.det(structure.cell)) > 0
    positions = structure.positions.astype(float) if repeated else _faced(structure.positions.astype(float))
    x, y, z = np.round(positions, 4).T.tolist()
    box = {"cell": np.round(structure.cell.astype(float), 4).ravel().tolist()} if repeated else {}
    return {"size": len(structure), "names": names, "x": x, "y": y, "z": z, **box}


def _faced(positions: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "N 3"]:
    """Turned, not mirrored, so that a molecule is broadest along x and flattest towards who looks at it."""
    centred = positions - positions.mean(0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return centred @ axes * [1, 1, np.linalg.det(axes)]


def _environments(structures: Block) -> list[dict[str, float]]:
    """All atoms: chemiscope colours those that have an environment, whose cutoff plays no part then."""
    return [
        {"structure": number, "center": atom, "cutoff": 3.5}
        for number, size in enumerate(structures.sizes.tolist())
        for atom in range(size)
    ]


def _digits(values: Float[np.ndarray, " n"]) -> list[float | None]:
    """Rounded, but for whole numbers; None for what is not known."""
    return [_rounded(value) if np.isfinite(value) else None for value in values.tolist()]


def _rounded(value: float) -> float:
    return value if value.is_integer() else float(f"{value:.5g}")
