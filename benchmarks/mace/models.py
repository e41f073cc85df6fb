"""Models and batches of mace-torch, as its documentation builds them. Runs in mace-torch's environment."""

import warnings
from typing import Any

warnings.filterwarnings("ignore")  # TorchScript of e3nn 0.4.4 under a newer torch

import numpy as np  # noqa: E402
import torch  # noqa: E402
from ase import Atoms  # noqa: E402
from ase.data import atomic_numbers  # noqa: E402
from ase.neighborlist import neighbor_list  # noqa: E402
from e3nn import o3  # noqa: E402
from mace import modules  # noqa: E402

CUTOFF_ANGSTROM = 5.0
ELEMENTS = ("H", "C", "O")
ENVELOPE_POWER = 3
"""Of the polynomial envelope that huefield has; mace-torch takes any."""


def settings(*, channels: int, hidden: int, radial: list[int], neighbours: float) -> dict[str, Any]:
    """Sizes of a model."""
    names = {"channels": channels, "hidden": hidden, "radial": radial, "neighbours": neighbours}
    return {**names, "elements": ELEMENTS}


def build(config: dict[str, Any]) -> torch.nn.Module:
    """Two interactions with invariant messages, l ≤ 3 and correlation 3."""
    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    return modules.ScaleShiftMACE(
        r_max=CUTOFF_ANGSTROM,
        num_bessel=8,
        num_polynomial_cutoff=ENVELOPE_POWER,
        max_ell=3,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=len(config["elements"]),
        hidden_irreps=o3.Irreps(f"{config['channels']}x0e"),
        MLP_irreps=o3.Irreps(f"{config['hidden']}x0e"),
        atomic_energies=np.zeros(len(config["elements"])),
        avg_num_neighbors=config["neighbours"],
        atomic_numbers=[atomic_numbers[e] for e in config["elements"]],
        correlation=3,
        gate=torch.nn.functional.silu,
        radial_MLP=config["radial"],
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


def batch_of(structures: list[Atoms], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Structures as mace-torch's loader would give them, neighbours included."""
    sizes = [len(atoms) for atoms in structures]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    first, second, shifts, units = [], [], [], []
    for atoms, start in zip(structures, starts[:-1], strict=True):
        i, j, images = neighbor_list("ijS", atoms, CUTOFF_ANGSTROM)
        first, second = [*first, i + start], [*second, j + start]
        shifts, units = [*shifts, images @ np.array(atoms.cell)], [*units, images]
    kinds = np.concatenate([[ELEMENTS.index(symbol) for symbol in atoms.symbols] for atoms in structures])
    real = {
        "positions": np.concatenate([atoms.positions for atoms in structures]),
        "node_attrs": np.eye(len(ELEMENTS))[kinds],
        "shifts": np.concatenate(shifts),
        "unit_shifts": np.concatenate(units),
        "cell": np.concatenate([np.array(atoms.cell) for atoms in structures]),
    }
    whole = {
        "edge_index": np.stack([np.concatenate(first), np.concatenate(second)]),
        "batch": np.repeat(np.arange(len(sizes)), sizes),
        "ptr": starts,
        "head": np.zeros(len(sizes), int),
    }
    return {name: torch.tensor(value, dtype=dtype) for name, value in real.items()} | {
        name: torch.tensor(value) for name, value in whole.items()
    }
