"""Elementary reactions: two end points with the same order of atoms.

Each end point is a Z-matrix with textbook bond lengths and angles; the oracle relaxes it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from huefield.make_data.geometry import from_zmatrix
from huefield.support.errors import HuefieldError


@dataclass(frozen=True, eq=False)
class Reaction:
    """Two arrangements of the same atoms."""

    name: str
    numbers: UInt8[np.ndarray, " N"]
    reactant: Float[np.ndarray, "N 3"]
    product: Float[np.ndarray, "N 3"]


HELD_OUT = (
    "cyclobutene to butadiene",
    "malonaldehyde hydrogen transfer",
    "methyl isocyanide to acetonitrile",
)
"""Reactions held out for a test: their formulas are not in any other split."""

PATHS = {
    "hydrogen cyanide to isocyanide": (
        "C; N 1 1.16; H 1 1.07 2 175",
        "C; N 1 1.17; H 2 1.00 1 175",
    ),
    "methyl isocyanide to acetonitrile": (
        "C; N 1 1.42; H 1 1.09 2 110; H 1 1.09 2 110 3 120; H 1 1.09 2 110 3 -120; C 2 1.17 1 179 3 0",
        "C; N 1 2.62; H 1 1.09 2 110; H 1 1.09 2 110 3 120; H 1 1.09 2 110 3 -120; C 1 1.46 2 1 3 0",
    ),
    "vinyl alcohol to acetaldehyde": (
        """C; C 1 1.34; O 2 1.36 1 127; H 1 1.08 2 122 3 0; H 1 1.08 2 120 3 180; H 2 1.09 1 122 3 180
           H 3 0.97 2 109 1 0""",
        """C; C 1 1.50; O 2 1.21 1 124; H 1 1.09 2 110 3 -60; H 1 1.09 2 110 3 180; H 2 1.11 1 115 3 180
           H 1 1.09 2 110 3 60""",
    ),
    "cyclopropane to propene": (
        """C; C 1 1.51; C 2 1.51 1 60; H 1 1.08 2 118 3 108; H 1 1.08 2 118 3 -108; H 2 1.08 1 118 3 108
           H 2 1.08 1 118 3 -108; H 3 1.08 1 118 2 108; H 3 1.08 1 118 2 -108""",
        """C; C 1 1.33; C 2 1.50 1 125; H 1 1.09 2 121 3 0; H 1 1.09 2 121 3 180; H 3 1.09 2 111 1 120
           H 2 1.09 1 119 3 180; H 3 1.09 2 111 1 0; H 3 1.09 2 111 1 -120""",
    ),
    "cyclobutene to butadiene": (
        """C; C 1 1.34; C 2 1.52 1 94; C 1 1.52 2 94 3 0; H 1 1.08 2 133 3 180; H 2 1.08 1 133 4 180
           H 3 1.09 2 115 1 117; H 3 1.09 2 115 1 -117; H 4 1.09 1 115 2 117; H 4 1.09 1 115 2 -117""",
        """C; C 1 1.46; C 2 1.34 1 126; C 1 1.34 2 126 3 35; H 1 1.09 2 116 3 -145; H 2 1.09 1 116 4 -145
           H 3 1.09 2 122 1 0; H 3 1.09 2 121 1 180; H 4 1.09 1 122 2 0; H 4 1.09 1 121 2 180""",
    ),
    "malonaldehyde hydrogen transfer": (
        """C; C 1 1.36; C 1 1.44 2 120; O 2 1.32 1 124 3 0; O 3 1.24 1 123 2 0; H 1 1.08 2 120 3 180
           H 2 1.09 1 122 3 180; H 3 1.10 1 118 2 180; H 4 1.00 2 106 1 0""",
        """C; C 1 1.44; C 1 1.36 2 120; O 2 1.24 1 123 3 0; O 3 1.32 1 124 2 0; H 1 1.08 2 120 3 180
           H 2 1.10 1 118 3 180; H 3 1.09 1 122 2 180; H 5 1.00 3 106 1 0""",
    ),
    "formic acid to carbon dioxide and hydrogen": (
        "C; O 1 1.20; O 1 1.34 2 125; H 1 1.10 2 125 3 180; H 3 0.97 1 109 2 180",
        "C; O 1 1.16; O 1 1.16 2 179; H 1 2.90 2 90 3 170; H 4 0.75 1 100 3 0",
    ),
    "formic acid to carbon monoxide and water": (
        "C; O 1 1.20; O 1 1.34 2 125; H 1 1.10 2 125 3 180; H 3 0.97 1 109 2 0",
        "C; O 1 1.13; O 1 2.90 2 120; H 3 0.96 1 100 2 180; H 3 0.96 1 100 2 60",
    ),
    "formaldehyde to hydrogen and carbon monoxide": (
        "C; O 1 1.21; H 1 1.11 2 122; H 1 1.11 2 122 3 180",
        "C; O 1 1.13; H 1 2.40 2 130; H 3 0.75 1 100 2 180",
    ),
    "formaldehyde to hydroxycarbene": (
        "C; O 1 1.21; H 1 1.11 2 122; H 1 1.11 2 122 3 180",
        "C; O 1 1.31; H 1 1.12 2 102; H 2 0.97 1 108 3 180",
    ),
    "hydroxycarbene rotation": (
        "C; O 1 1.31; H 1 1.12 2 102; H 2 0.97 1 108 3 180",
        "C; O 1 1.31; H 1 1.12 2 107; H 2 0.97 1 116 3 0",
    ),
    "ammonia inversion": (
        "N; H 1 1.01; H 1 1.01 2 107; H 1 1.01 2 107 3 114",
        "N; H 1 1.01; H 1 1.01 2 107; H 1 1.01 2 107 3 -114",
    ),
    "diazene trans to cis": (
        "N; N 1 1.25; H 1 1.03 2 107; H 2 1.03 1 107 3 180",
        "N; N 1 1.25; H 1 1.03 2 112; H 2 1.03 1 112 3 5",
    ),
    "formamide to formimidic acid": (
        "C; O 1 1.21; N 1 1.36 2 125; H 1 1.10 2 122 3 180; H 3 1.00 1 119 2 0; H 3 1.00 1 121 2 180",
        "C; O 1 1.35; N 1 1.26 2 122; H 1 1.09 2 111 3 180; H 2 0.98 1 106 3 0; H 3 1.02 1 111 2 180",
    ),
    "formic acid rotation": (
        "C; O 1 1.20; O 1 1.34 2 125; H 1 1.10 2 125 3 180; H 3 0.97 1 107 2 0",
        "C; O 1 1.20; O 1 1.34 2 122; H 1 1.10 2 124 3 180; H 3 0.97 1 109 2 175",
    ),
    "methanol to formaldehyde and hydrogen": (
        "C; O 1 1.42; H 1 1.09 2 107; H 1 1.09 2 112 3 119; H 1 1.09 2 112 3 -119; H 2 0.96 1 108 4 0",
        "C; O 1 1.21; H 1 1.11 2 122; H 2 3.00 1 90 3 90; H 1 1.11 2 122 3 180; H 4 0.75 2 100 1 0",
    ),
    "acetaldehyde to methane and carbon monoxide": (
        """C; C 1 1.50; O 2 1.21 1 124; H 1 1.09 2 110 3 0; H 1 1.09 2 110 3 121; H 1 1.09 2 110 3 -121
           H 2 1.11 1 115 3 180""",
        """C; C 1 3.40; O 2 1.13 1 125; H 1 1.09 2 110 3 0; H 1 1.09 2 110 3 121; H 1 1.09 2 110 3 -121
           H 1 1.09 2 2 3 180""",
    ),
    "glyoxal to formaldehyde and carbon monoxide": (
        "C; C 1 1.52; O 1 1.21 2 121; O 2 1.21 1 121 3 180; H 1 1.11 2 115 4 0; H 2 1.11 1 115 3 0",
        "C; C 1 3.20; O 1 1.13 2 110; O 2 1.21 1 105 3 180; H 2 1.11 4 122 1 80; H 2 1.11 4 122 1 -100",
    ),
    "ethanol to ethene and water": (
        """C; C 1 1.52; O 1 1.42 2 108; H 1 1.10 2 110 3 120; H 1 1.10 2 110 3 -120; H 2 1.09 1 110 3 0
           H 2 1.09 1 110 3 120; H 2 1.09 1 110 3 -120; H 3 0.97 1 108 2 180""",
        """C; C 1 1.33; O 1 3.20 2 85; H 1 1.09 2 121 3 90; H 1 1.09 2 121 3 -90; H 3 0.96 1 70 2 0
           H 2 1.09 1 121 4 180; H 2 1.09 1 121 4 0; H 3 0.96 1 130 2 180""",
    ),
}  # fmt: skip
"""Reactant and product of each reaction."""


def elementary_reactions() -> list[Reaction]:
    """All reactions, in a fixed order."""
    return [_reaction(name, *ends) for name, ends in PATHS.items()]


def _reaction(name: str, reactant: str, product: str) -> Reaction:
    numbers, start = from_zmatrix(reactant)
    same, end = from_zmatrix(product)
    if not np.array_equal(numbers, same):
        raise HuefieldError(f"the end points of {name!r} have different atoms: {numbers.tolist()} and {same.tolist()}")
    return Reaction(name, numbers, start, end)
