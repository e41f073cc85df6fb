"""Data of the structure viewer of a report.

The data have chemiscope's JSON format (https://chemiscope.org/docs/json.html). They are written without chemiscope's
Python package, whose import takes a second. JSON has no NaN: unknown numbers are null, and ``assets/viewer.js``
converts them back.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Float, Shaped

from huefield.core.structure import Block, Structure
from huefield.evaluation.report.selection import Selection, StructureScores
from huefield.predict.predictions import Predictions

ATOM_UNCERTAINTY, ATOM_ERROR = "force uncertainty", "force error"
IN_FORCE_UNITS = " (eV/Å)"
"""Suffix of the names of atomic properties, because chemiscope's colour bar shows names without units."""
COLORED_TO = 0.98
"""Quantile of the atomic values at which the colour scale ends, so that a single outlier does not dominate it."""


@dataclass(frozen=True, eq=False)
class Property:
    """Numbers or words, one per structure or per atom."""

    target: str
    values: Float[np.ndarray, " n"] | tuple[str, ...]
    units: str = ""
    description: str = ""

    @property
    def known(self) -> bool:
        """Whether any value is known."""
        return any(self.values) if isinstance(self.values, tuple) else bool(np.isfinite(self.values).any())

    def as_json(self) -> dict[str, Any]:
        """The object in chemiscope's JSON format."""
        words = {"units": self.units, "description": self.description}
        values = list(self.values) if isinstance(self.values, tuple) else _digits(self.values)
        return {"target": self.target, "values": values} | {name: text for name, text in words.items() if text}


@dataclass(frozen=True)
class Map:
    """A scatter plot of errors against uncertainties."""

    label: str
    x: str
    y: str
    logarithmic: bool

    def as_json(self) -> dict[str, Any]:
        """The object in chemiscope's JSON format."""
        scale = "log" if self.logarithmic else "linear"
        return {"x": {"property": self.x, "scale": scale}, "y": {"property": self.y, "scale": scale}}


@dataclass(frozen=True)
class Coloring:
    """A way to colour atoms."""

    label: str
    property: str
    highest: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The object in chemiscope's JSON format."""
        if self.property == "element":
            return {"property": self.property}
        return {"property": self.property, "min": 0.0, "max": self.highest, "palette": "viridis"}


@dataclass(frozen=True, eq=False)
class Viewer:
    """Structures with their properties and display settings."""

    name: str
    structures: Block
    properties: dict[str, Property]
    maps: tuple[Map, ...] = field(default=())
    """Empty if no value was both predicted and observed."""
    colorings: tuple[Coloring, ...] = field(default=())
    first: int = 0
    """Index of the structure that is shown first."""

    def as_json(self) -> str:
        """Chemiscope's data set, and the choices of the page."""
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
    """Selected structures with errors and uncertainties; the one with the largest error is shown first."""
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


def _structure_properties(scores: StructureScores, selection: Selection) -> dict[str, Property]:
    """Properties of each structure."""
    block, at = scores.predictions.structures, selection.indices

    def of(values: Shaped[np.ndarray, " n"], units: str, description: str) -> Property:
        return Property("structure", np.asarray(values, float)[at], units, description)

    return {
        "force uncertainty (rms)": of(scores.force_uncertainty, "eV/Å", "root of the mean variance of the components"),
        "force RMSE": of(scores.force_error, "eV/Å", "root mean square error of the components"),
        "energy uncertainty": of(scores.energy_uncertainty, "eV", "standard deviation"),
        "energy error": of(scores.energy_error, "eV", "absolute"),
        "largest force uncertainty": of(scores.worst_force_uncertainty, "eV/Å", "of the most uncertain atom"),
        "largest force error": of(scores.worst_force_error, "eV/Å", "of the atom with the largest error"),
        "atoms": of(block.sizes, "", "number of atoms"),
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
    """Positions rotated (not mirrored) to their principal axes: largest extent along x, smallest along z."""
    centred = positions - positions.mean(0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return centred @ axes * [1, 1, np.linalg.det(axes)]


def _environments(structures: Block) -> list[dict[str, float]]:
    """All atoms, because chemiscope colours only atoms with an environment; the cutoff has no effect."""
    return [
        {"structure": number, "center": atom, "cutoff": 3.5}
        for number, size in enumerate(structures.sizes.tolist())
        for atom in range(size)
    ]


def _digits(values: Float[np.ndarray, " n"]) -> list[float | None]:
    """Values with five significant digits (integers are exact); None if unknown."""
    return [_rounded(value) if np.isfinite(value) else None for value in values.tolist()]


def _rounded(value: float) -> float:
    return value if value.is_integer() else float(f"{value:.5g}")
