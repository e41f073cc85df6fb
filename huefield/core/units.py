"""Factors to eV, Å and fs (CODATA 2018), and units that files state.

The readers in ``huefield.data.readers`` apply them.
"""

HARTREE_EV = 27.211386245988
BOHR_ANGSTROM = 0.529177210903
KCAL_PER_MOL_EV = 0.043364104241800934
KJ_PER_MOL_EV = 0.010364269656262174

ENERGY_UNITS_EV: dict[str, float] = {
    "eV": 1.0,
    "meV": 1e-3,
    "hartree": HARTREE_EV,
    "kcal/mol": KCAL_PER_MOL_EV,
    "kJ/mol": KJ_PER_MOL_EV,
}
LENGTH_UNITS_ANGSTROM: dict[str, float] = {"angstrom": 1.0, "bohr": BOHR_ANGSTROM, "nm": 10.0}
