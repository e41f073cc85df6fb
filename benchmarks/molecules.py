"""The README's figure: energies along two reactions with error bars, and forces of one structure with theirs.

    huefield config --preset tiny > molecules.yaml
    huefield train molecules.yaml --out molecules --set members=4 --set validate_every=300 \
        --set model.potential.features=32 --set model.potential.layers=3 \
        --set stages.0.steps=3000 --set stages.1.steps=400 --set stages.2.steps=800 \
        --set stages.1.energy_weight=5 --set stages.2.energy_weight=5
    huefield calibrate molecules/model.safetensors molecules
    python benchmarks/molecules.py molecules/model-calibrated.safetensors

The model is trained on the bundled data. GFN2-xTB (tblite), the method of these data, finds the minimum energy paths
and gives the reference energies and forces. Writes docs/images/molecules.png.
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from huefield.ase.calculator import Calculator
from huefield.core.structure import Structure
from huefield.make_data.geometry import bonds
from huefield.make_data.neb import reaction_path
from huefield.make_data.oracles import TbliteOracle
from huefield.make_data.reactions import elementary_reactions
from huefield.model.differences import EnergyCovariance
from huefield.support import plots

PANELS = {
    "vinyl alcohol to acetaldehyde": "a reaction of the training data",
    "malonaldehyde hydrogen transfer": "an unseen reaction",
}
WIDTH = 2.0
"""Standard deviations that bands and bars reach to each side."""
COLORS = "viridis"
IMAGE = Path(__file__).resolve().parents[1] / "docs" / "images" / "molecules.png"


@dataclass(frozen=True, eq=False)
class Profile:
    """Reference path of a reaction, and predictions along it."""

    images: list[Atoms]
    """With the calculator of the model."""
    reference: list[Structure]
    """The same structures with reference energies and forces."""
    predicted: EnergyCovariance

    @property
    def reference_energies(self) -> Float[np.ndarray, " n"]:
        """Reference energies above the reactant [eV]."""
        energies = np.array([structure.energy for structure in self.reference], float)
        return energies - energies[0]

    @property
    def steepest(self) -> int:
        """The image with the largest reference force."""
        return int(np.argmax([np.abs(np.asarray(structure.forces)).max() for structure in self.reference]))


def main() -> None:
    """Find both paths, predict along them, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--figure", type=Path, default=IMAGE)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the unseen reaction is uncertain, which is the point
    calculator = Calculator(args.model)
    profiles = {name: profile_of(name, calculator) for name in PANELS}
    with plots.publication_style():
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        draw(figure, profiles)
        figure.savefig(args.figure, dpi=200)
    print(f"Wrote {args.figure}")


def profile_of(name: str, calculator: Calculator) -> Profile:
    """Find the reference path of a reaction and predict its energies."""
    reaction = next(r for r in elementary_reactions() if r.name == name)
    band, oracle = reaction_path(reaction, TbliteOracle()).bands[-1], TbliteOracle()
    images = [Atoms(reaction.numbers, positions, calculator=calculator.sibling()) for positions in band]
    found = Profile(
        images, [oracle.label(Structure(reaction.numbers, at)) for at in band], calculator.energy_covariance(images)
    )
    top = int(found.reference_energies.argmax())
    print(f"{name}: barrier {found.predicted.difference(0, top)}, reference {found.reference_energies[top]:.3f} eV")
    return found


def draw(figure: Figure, profiles: dict[str, Profile]) -> None:
    """Profiles above; below, a structure of the last one with its force uncertainties, and its forces."""
    axes = figure.subplots(2, 2)
    for ax, (name, profile) in zip(axes[0], profiles.items(), strict=True):
        draw_profile(ax, profile)
        ax.set_title(f"{name}\n({PANELS[name]})")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    last = profiles[next(reversed(profiles))]
    atoms, reference = last.images[last.steepest], np.asarray(last.reference[last.steepest].forces)
    deviations = np.asarray(atoms.calc.get_property("forces_uncertainty", atoms))
    per_atom = np.sqrt((deviations**2).mean(1))
    norm = Normalize(0, float(per_atom.max()))
    draw_molecule(axes[1, 0], atoms, per_atom, norm)
    draw_errors(axes[1, 1], atoms.get_forces() - reference, deviations, atoms.get_chemical_symbols(), norm)
    bar = figure.colorbar(ScalarMappable(norm, COLORS), ax=axes[1, 0], location="left", shrink=0.8)
    bar.set_label("force uncertainty of the atom (eV/Å)")


def draw_profile(ax: Axes, profile: Profile) -> None:
    """Predicted energies above the reactant with the interval of the difference, and reference energies."""
    steps = [np.linalg.norm(b.positions - a.positions) for a, b in pairwise(profile.images)]
    at, energies = np.array([0.0, *np.cumsum(steps)]), profile.predicted
    relative, half = energies.energy - energies.energy[0], WIDTH * energies.relative_to(0)
    ax.fill_between(at, relative - half, relative + half, color=plots.EPISTEMIC, alpha=0.3, lw=0, label=f"±{WIDTH:g}σ")
    ax.plot(at, relative, "-o", color=plots.MEAN, ms=2.5, label="huefield")
    ax.plot(at, profile.reference_energies, "D", color=plots.OBSERVED, ms=3.5, label="reference (GFN2-xTB)")
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
    ax.set_title("a structure of the unseen reaction")


def draw_errors(
    ax: Axes,
    errors: Float[np.ndarray, "N 3"],
    deviations: Float[np.ndarray, "N 3"],
    symbols: Sequence[str],
    norm: Normalize,
) -> None:
    """Errors of force components, atom by atom, with bars of the predicted uncertainty."""
    per_atom = np.sqrt((deviations**2).mean(1))
    order = np.argsort(per_atom)[::-1]
    colors: Any = ScalarMappable(norm, COLORS).to_rgba(np.repeat(per_atom[order], 3))
    at = (np.arange(len(order))[:, None] + np.array([-0.25, 0.0, 0.25])).ravel()
    half = WIDTH * deviations[order].ravel()
    ax.bar(at, 2 * half, width=0.2, bottom=-half, color=colors, label=f"±{WIDTH:g}σ")
    ax.plot(at, errors[order].ravel(), "o", color=plots.OBSERVED, ms=3, mec="white", mew=0.4)
    ax.set_xticks(range(len(order)), [symbols[atom] for atom in order])
    inside = np.abs(errors) <= WIDTH * deviations
    ax.set(xlabel="atom (x, y and z components)", ylabel="error of the predicted force (eV/Å)")
    ax.set_title(f"its force errors and ±{WIDTH:g}σ\n({inside.mean():.0%} of the components within)")


if __name__ == "__main__":
    main()
