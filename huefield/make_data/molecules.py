"""Molecules that are sampled near their equilibria: closed shells of H, C, N and O with up to 12 atoms.

Geometries come from ASE's G2 set or from Z-matrices with textbook bond lengths; the oracle relaxes both.
"""

from dataclasses import dataclass

import numpy as np
from ase.build import molecule as g2_molecule
from jaxtyping import Float, UInt8

from huefield.make_data.geometry import from_zmatrix


@dataclass(frozen=True, eq=False)
class Molecule:
    """A starting geometry and its source."""

    name: str
    numbers: UInt8[np.ndarray, " N"]
    positions: Float[np.ndarray, "N 3"]
    source: str


G2 = {
    "methane": "CH4", "ammonia": "NH3", "water": "H2O", "hydrogen cyanide": "HCN", "formaldehyde": "H2CO",
    "acetylene": "C2H2", "ethene": "C2H4", "ethane": "C2H6", "methanol": "CH3OH", "methylamine": "H3CNH2",
    "hydrogen peroxide": "H2O2", "hydrazine": "N2H4", "formic acid": "HCOOH",
    "acetaldehyde": "CH3CHO", "ketene": "H2CCO", "oxirane": "CH2OCH2", "aziridine": "CH2NHCH2", "propyne": "C3H4_C3v",
    "propene": "C3H6_Cs", "propane": "C3H8", "ethanol": "CH3CH2OH", "dimethyl ether": "CH3OCH3",
    "acetic acid": "CH3COOH", "methyl formate": "HCOOCH3", "acetamide": "CH3CONH2", "acetone": "CH3COCH3",
    "nitromethane": "CH3NO2", "acrylonitrile": "H2CCHCN", "glyoxal": "OCHCHO", "furan": "C4H4O", "pyrrole": "C4H4NH",
    "pyridine": "C5H5N", "benzene": "C6H6", "cyclobutane": "cyclobutane",
}  # fmt: skip
"""Names in the G2 set."""

OWN = {
    "formamide": """
        C; O 1 1.21; N 1 1.36 2 124.7; H 1 1.10 2 122.5 3 180
        H 3 1.00 1 119 2 0; H 3 1.00 1 121 2 180""",
    "methanimine": "C; N 1 1.27; H 1 1.09 2 123.4; H 1 1.09 2 119.7 3 180; H 2 1.02 1 110.5 3 180",
    "hydroxylamine": "N; O 1 1.45; H 1 1.02 2 103; H 1 1.02 2 103 3 107; H 2 0.96 1 101 3 126",
    "urea": """
        C; O 1 1.22; N 1 1.38 2 123; N 1 1.38 2 123 3 180
        H 3 1.00 1 112 2 10; H 3 1.00 1 118 2 150; H 4 1.00 1 112 2 10; H 4 1.00 1 118 2 150""",
    "acrolein": """
        C; C 1 1.34; C 2 1.47 1 121; O 3 1.21 2 124 1 180
        H 1 1.09 2 121 3 0; H 1 1.09 2 121 3 180; H 2 1.09 1 122 5 180; H 3 1.11 2 115 1 0""",
    "glycolaldehyde": """
        C; C 1 1.50; O 1 1.21 2 122; H 1 1.11 2 116 3 180
        O 2 1.40 1 112 3 0; H 2 1.10 1 108 3 122; H 2 1.10 1 108 3 -122; H 5 0.97 2 106 1 0""",
}
"""Z-matrices of molecules that the G2 set lacks."""


def equilibrium_molecules() -> list[Molecule]:
    """All molecules, in a fixed order."""
    molecules = []
    for name, g2_name in G2.items():
        atoms = g2_molecule(g2_name)
        molecules.append(
            Molecule(name, atoms.numbers.astype(np.uint8), atoms.positions, f"G2 set (ase.build.molecule): {g2_name}")
        )
    return molecules + [Molecule(name, *from_zmatrix(text), "Z-matrix of huefield") for name, text in OWN.items()]
