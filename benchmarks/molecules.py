"""The README's figure: reaction profiles with error bars, and forces of one structure with theirs.

    huefield config --preset tiny > molecules.yaml
    huefield train molecules.yaml --out molecules --set members=4 --set validate_every=300 \
        --set model.potential.features=32 --set model.potential.layers=3 \
        --set stages.0.steps=3000 --set stages.1.steps=400 --set stages.2.steps=800 \
        --set stages.1.energy_weight=5 --set stages.2.energy_weight=5
    huefield calibrate molecules/model.safetensors molecules
    python benchmarks/molecules.py molecules/model-calibrated.safetensors

The model is trained on the bundled data. The band of a reaction is optimised by the model alone; GFN2-xTB (tblite), the
method of the training data, then gives reference energies of its images. Writes docs/images/molecules.png.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.utils.forcecurve import fit_images
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from huefield.ase.calculator import Calculator
from huefield.ase.neb.path import PathConfig, ReactionPath, find_path
from huefield.core.structure import Structure
from huefield.make_data.geometry import bonds
from huefield.make_data.oracles import TbliteOracle
from huefield.make_data.reactions import elementary_reactions
from huefield.support import plots

PANELS = {
    "vinyl alcohol to acetaldehyde": "a reaction of the training data",
    "malonaldehyde hydrogen transfer": "an unseen reaction",
}
WIDTH = 2.0
"""Standard deviations that bands and bars reach to each side."""
COLORS = "viridis"
IMAGE = Path(__file__).resolve().parents[1] / "docs" / "images" / "molecules.png"


def main() -> None:
    """Find both paths, label their images, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--figure", type=Path, default=IMAGE)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the unseen reaction is uncertain, which is the point
    calculator = Calculator(args.model)
    paths = {name: path_of(name, calculator) for name in PANELS}
    with plots.publication_style():
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        draw(figure, paths)
        figure.savefig(args.figure, dpi=200)
    print(f"Wrote {args.figure}")


def path_of(name: str, calculator: Calculator) -> ReactionPath:
    """Optimise the band of a reaction with the model."""
    reaction = next(r for r in elementary_reactions() if r.name == name)
    reactant, product = (Atoms(reaction.numbers, positions) for positions in (reaction.reactant, reaction.product))
    found = find_path(calculator, reactant, product, PathConfig(fmax_ev_per_angstrom=0.1, steps=500))
    print(f"{name}: barrier {found.barrier}, converged: {found.converged}")
    return found


def labelled(image: Atoms) -> Structure:
    """Compute the reference energy and forces of an image."""
    return TbliteOracle().label(Structure(image.numbers.astype(np.uint8), image.positions.copy()))


def draw(figure: Figure, paths: dict[str, ReactionPath]) -> None:
    """Profiles above; below, the top of the second path with its force uncertainties, and its forces."""
    axes = figure.subplots(2, 2)
    for ax, (name, path) in zip(axes[0], paths.items(), strict=True):
        draw_profile(ax, path)
        ax.set_title(f"{name}\n({PANELS[name]})")
    axes[0, 0].legend(loc="upper left")
    last = paths[next(reversed(paths))]
    top = last.images[last.top]
    deviations = np.asarray(top.calc.get_property("forces_uncertainty", top))
    per_atom = np.sqrt((deviations**2).mean(1))
    norm = Normalize(0, float(per_atom.max()))
    draw_molecule(axes[1, 0], top, per_atom, norm)
    draw_forces(axes[1, 1], top, deviations, per_atom, norm)
    bar = figure.colorbar(ScalarMappable(norm, COLORS), ax=axes[1, 0], location="left", shrink=0.8)
    bar.set_label("force uncertainty of the atom (eV/Å)")


def draw_profile(ax: Axes, path: ReactionPath) -> None:
    """Predicted energies above the reactant with the band of the difference, and reference energies."""
    at = np.asarray(fit_images(list(path.images)).path, float)
    energies = path.energies
    relative, half = energies.energy - energies.energy[0], WIDTH * energies.relative_to(0)
    reference = np.array([labelled(image).energy for image in path.images], float)
    ax.fill_between(at, relative - half, relative + half, color=plots.EPISTEMIC, alpha=0.3, lw=0, label=f"±{WIDTH:g}σ")
    ax.plot(at, relative, "-o", color=plots.MEAN, ms=2.5, label="huefield")
    ax.plot(at, reference - reference[0], "D", color=plots.OBSERVED, ms=3.5, label="reference (GFN2-xTB)")
    ax.set(xlabel="distance along the path (Å)", ylabel="energy above the reactant (eV)")


def draw_molecule(ax: Axes, atoms: Atoms, per_atom: Float[np.ndarray, " N"], norm: Normalize) -> None:
    """A ball-and-stick drawing in the plane of the molecule, coloured by the uncertainty of forces."""
    centred = atoms.positions - atoms.positions.mean(0)
    plane = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    x, y = plane[:, 0], plane[:, 1]
    for i, j in np.argwhere(np.triu(bonds(atoms.numbers.astype(np.uint8), atoms.positions))):
        ax.plot(x[[i, j]], y[[i, j]], color="0.6", lw=3, zorder=1)
    sizes = 900 * covalent_radii[atoms.numbers]
    ax.scatter(x, y, s=sizes, c=per_atom, norm=norm, cmap=COLORS, edgecolors="black", linewidths=0.6, zorder=2)
    for atom, symbol in enumerate(atoms.get_chemical_symbols()):
        color = "black" if per_atom[atom] > 0.6 * per_atom.max() else "white"
        ax.text(x[atom], y[atom], symbol, ha="center", va="center", color=color, zorder=3)
    ax.set_aspect("equal")
    ax.margins(0.2)
    ax.set_axis_off()
    ax.set_title("its highest structure")


def draw_forces(
    ax: Axes, atoms: Atoms, deviations: Float[np.ndarray, "N 3"], per_atom: Float[np.ndarray, " N"], norm: Normalize
) -> None:
    """Predicted against reference force components with error bars."""
    predicted, reference = atoms.get_forces(), np.asarray(labelled(atoms).forces)
    colors: Any = ScalarMappable(norm, COLORS).to_rgba(np.repeat(per_atom, 3))
    x, y = reference.ravel(), predicted.ravel()
    ax.errorbar(x, y, WIDTH * deviations.ravel(), fmt="none", ecolor=colors, elinewidth=1.2)
    ax.scatter(x, y, c=colors, s=12, zorder=3)
    limit = 1.1 * max(np.abs(reference).max(), np.abs(predicted).max())
    ax.plot([-limit, limit], [-limit, limit], "--", color=plots.TRUTH, lw=0.8, zorder=0)
    inside = np.abs(predicted - reference) <= WIDTH * deviations
    ax.set(xlabel="reference force component (eV/Å)", ylabel="predicted, ±2σ (eV/Å)")
    ax.set_title(f"its forces: {inside.mean():.0%} of the components within ±{WIDTH:g}σ")


if __name__ == "__main__":
    main()
