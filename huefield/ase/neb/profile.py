"""Figure of a reaction path: energies from reactant to product, with their uncertainty as a band.

The uncertainties come from :mod:`huefield.ase.neb.path`.
"""

from pathlib import Path

import numpy as np
from ase.utils.forcecurve import fit_images
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator

from huefield.ase.neb.path import ReactionPath
from huefield.support import plots
from huefield.support.files import replacing

WIDTH = 2.0
"""Half width of the band in standard deviations."""
MARGIN = 0.1
"""Margin above and below the band, relative to its height. Lines of much larger independent errors are out of view."""


def save_profile(found: ReactionPath, path: Path) -> tuple[Path, ...]:
    """Draw the profile as PNG and PDF, and return the files."""
    files = tuple(path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf"))
    with plots.publication_style():
        figure = Figure(figsize=(4.6, 3.3), layout="constrained")
        draw_profile(figure.subplots(), found)
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix[1:], dpi=200)
    return files


def draw_profile(ax: Axes, found: ReactionPath) -> None:
    """Draw energies relative to the reactant with their uncertainty, and the uncertainty for independent errors."""
    fit = fit_images(list(found.images))
    at, fine = np.asarray(fit.path, float), np.asarray(fit.fit_path, float)
    energies = found.energies
    relative, curve = energies.energy - energies.energy[0], np.asarray(fit.fit_energies, float)
    band = _smooth(at, WIDTH * energies.relative_to(0), fine)
    band_label = f"± {WIDTH:g} standard deviations"
    ax.fill_between(fine, curve - band, curve + band, color=plots.EPISTEMIC, alpha=0.3, lw=0, label=band_label)
    apart = WIDTH * np.hypot(energies.uncertainty, energies.uncertainty[0])
    for sign, label in ((-1, None), (1, f"if errors were independent (up to ±{apart[1:].max():.2g} eV)")):
        ax.plot(at[1:], (relative + sign * apart)[1:], ":", color=plots.TRUTH, lw=0.9, label=label)
    ax.plot(fine, curve, color=plots.MEAN)
    ax.plot(at, relative, "o", color=plots.MEAN, ms=3.0)
    low, high = float((curve - band).min()), float((curve + band).max())
    margin = MARGIN * max(high - low, 1e-3)
    ax.set(xlabel="distance along the path (Å)", ylabel="energy relative to the reactant (eV)")
    ax.set_ylim(low - margin, high + margin)
    ax.set_title(f"barrier {found.barrier}", loc="left", fontsize="small")
    ax.set_title(f"reaction energy {found.reaction_energy}", loc="right", fontsize="small")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)  # never on top of a curve


def _smooth(at: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"], fine: Float[np.ndarray, " m"]) -> np.ndarray:
    return np.maximum(PchipInterpolator(at, values)(fine), 0.0)
