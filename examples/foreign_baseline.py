"""Results of a calculator that needs an environment of its own, for models of huefield that correct it.

Run it with the Python of that environment; it needs ASE and the package of the calculator, and not huefield:

    python foreign_baseline.py CALCULATOR IN.xyz OUT.extxyz    # write baseline_energy, baseline_forces, baseline_stress
    python foreign_baseline.py CALCULATOR                      # answer requests of huefield (--baseline-command)

CALCULATOR is one of

    mace:FILE           a MACE model                          (pip install mace-torch)
    mace_mp:SIZE        a foundation model, small to large    (pip install mace-torch)
    ani2x, ani1x        ANI                                   (pip install torchani)
    chgnet              CHGNet                                (pip install chgnet)
    emt, lj             calculators of ASE, to try it

Add your own to ``calculator``: any ASE calculator will do.
"""

import json
import os
import sys

import numpy as np
from ase import Atoms
from ase.io import iread, write


def calculator(name):
    """The ASE calculator with this name."""
    kind, _, argument = name.partition(":")
    if kind == "mace":
        from mace.calculators import MACECalculator

        return MACECalculator(model_paths=argument, device="cpu", default_dtype="float64")
    if kind == "mace_mp":
        from mace.calculators import mace_mp

        return mace_mp(model=argument or "small", device="cpu", default_dtype="float64")
    if kind in ("ani2x", "ani1x"):
        import torchani

        return getattr(torchani.models, {"ani2x": "ANI2x", "ani1x": "ANI1x"}[kind])().double().ase()
    if kind == "chgnet":
        from chgnet.model.dynamics import CHGNetCalculator

        return CHGNetCalculator()
    if kind == "emt":
        from ase.calculators.emt import EMT

        return EMT()
    if kind == "lj":
        from ase.calculators.lj import LennardJones

        return LennardJones()
    raise SystemExit(f"unknown calculator {name!r}: add it to the function calculator in {__file__}")


def results(atoms, calc):
    """Energy [eV], forces [eV/Å] and stress [eV/Å³, 3 x 3] or None; raises whatever the calculator raises."""
    atoms.calc = calc
    atoms.set_constraint()  # forces of frozen atoms count, too
    energy, forces = float(atoms.get_potential_energy()), np.asarray(atoms.get_forces(), float)
    has_stress = atoms.pbc.any() and atoms.cell.rank == 3 and "stress" in calc.implemented_properties
    stress = atoms.get_stress(voigt=False) if has_stress else None
    if not (np.isfinite(energy) and np.isfinite(forces).all()):
        raise ValueError("the energy or a force is NaN or infinite")
    return energy, forces, stress


def serve(name):
    """Answer each line of standard input, a structure in JSON, with a line of standard output."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print, also while a model is loaded, goes to standard error
    calc = calculator(name)
    for line in sys.stdin:
        request = json.loads(line)
        atoms = Atoms(request["numbers"], request["positions"], cell=request["cell"], pbc=request["pbc"])
        try:
            energy, forces, stress = results(atoms, calc)
            stress = None if stress is None else stress.tolist()
            reply = {"energy": energy, "forces": forces.tolist(), "stress": stress}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")


def write_columns(calc, source, out):
    """Write the structures of a file with the results beside labels, info and arrays; resumes after a kill."""
    part, failed = f"{out}.part", 0
    done = {atoms.info["frame"] for atoms in iread(part, ":")} if os.path.exists(part) else set()
    for number, atoms in enumerate(iread(source, ":")):
        if number in done:
            continue
        labels = {} if atoms.calc is None else dict(atoms.calc.results)
        atoms.calc = None
        try:
            energy, forces, stress = results(atoms.copy(), calc)
        except Exception as error:
            failed += 1
            print(f"frame {number} is left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        atoms.info |= {"frame": number, "baseline_energy": energy}
        atoms.arrays["baseline_forces"] = forces
        if stress is not None:
            atoms.info["baseline_stress"] = stress
        for name in ("energy", "stress"):
            if name in labels:
                atoms.info.setdefault(f"REF_{name}", labels[name])
        if "forces" in labels:
            atoms.arrays.setdefault("REF_forces", labels["forces"])
        write(part, atoms, format="extxyz", append=True)
        done.add(number)
        if number % 50 == 49:
            print(f"{number + 1} structures", file=sys.stderr)
    if not done:
        raise SystemExit(f"there is no result for any structure of {source}: nothing was written")
    os.replace(part, out)
    print(f"Wrote {out}: {len(done)} structures, {failed} left out")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        raise SystemExit(__doc__)
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        write_columns(calculator(sys.argv[1]), *sys.argv[2:])
