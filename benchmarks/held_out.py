"""Data and models of new_structures.py: parts of the data that training never sees, and members trained without it."""

from pathlib import Path
from typing import Any

import numpy as np
from study import SHARED

FOLDS, MEMBERS = 4, 5
PROPANOL = sorted([6] * 3 + [1] * 8 + [8])
"""Atomic numbers of the reactions of Transition1x, which are left out of training."""


def root(group: str) -> str:
    """The molecule or reaction of a group."""
    return group if group.startswith(("reaction", "path")) else group.split(":")[0]


def bundled_parts(deal: int, fold: int) -> dict[str, Any]:
    """Blocks of training, validation and tests, with a quarter of the molecules and reactions left out.

    Args:
        deal: seed by which the molecules and reactions are dealt.
        fold: the quarter.
    """
    from huefield.core.structure import joined
    from huefield.data.bundled.sets import bundled

    data = bundled()
    names = ("train", "validation", "test_id", "test_reactions")
    whole, hot = joined([data.blocks[name] for name in names], "bundled"), data.blocks["test_hot"]
    roots = np.array([root(group) for group in whole.groups])
    distinct = np.unique(roots)
    left_out = distinct[np.random.default_rng(deal).permutation(len(distinct))[fold::FOLDS]]
    new = np.isin(roots, left_out)
    known = np.random.default_rng(100 * (deal + 1) + fold).permutation(np.flatnonzero(~new))
    ends = int(0.8 * len(known)), int(0.9 * len(known))
    known_hot = ~np.isin([root(group) for group in hot.groups], left_out)

    def chosen(rows: np.ndarray) -> Any:
        return whole.select(np.isin(np.arange(len(whole)), rows))

    return {
        "train": chosen(known[: ends[0]]),
        "validation": chosen(known[ends[0] : ends[1]]),
        "known groups": chosen(known[ends[1] :]),
        "new groups": whole.select(new),
        "known molecules at 1500 and 2000 K": hot.select(known_hot),
        "new molecules at 1500 and 2000 K": hot.select(~known_hot),
    }


def bundled_model(deal: int, fold: int, parts: dict[str, Any], runs: Path) -> Any:
    """The model of one part of one deal."""
    return trained_members(parts, runs / f"bundled{deal}{fold}", seed=10 * deal, batch_size=8)


def trained_members(parts: dict[str, Any], folder: Path, *, seed: int, batch_size: int, **settings: Any) -> Any:
    """Five members, trained one by one without growth of their noise."""
    import huefield
    from huefield.data.dataset import FileData
    from huefield.data.store.format import Provenance
    from huefield.data.store.writer import StoreWriter
    from huefield.model import Ensemble
    from huefield.potentials import PaiNN
    from huefield.training.presets import three_stages, with_care

    files = {name: folder / f"{name}.hues" for name in ("train", "validation")}
    models = [folder / f"full{member}" / "model.safetensors" for member in range(MEMBERS)]
    for member, model in enumerate(models):
        if model.exists():
            continue
        for name, file in files.items():
            made = Provenance(huefield=huefield.__version__, precision="float64", sources=())
            with StoreWriter(file, made, resume=False, overwrite=True) as writer:
                writer.append(parts[name])
                writer.finish()
        config = with_care(
            FileData(train=(files["train"],), validation=(files["validation"],), allow_shared=True),
            PaiNN.Config(features=32, radial_functions=10),
            three_stages((3000, 500, 1000), 1e-2, 5e-4),
            members=1, batch_size=batch_size, validate_every=250, checkpoint_every=500,
        )  # fmt: skip
        huefield.train(config.model_copy(update={"seed": seed + member, "novelty": False, **settings}), model.parent)
    members = [huefield.load(model) for model in models]
    return Ensemble.from_members([each.member(0) for each in members]).with_atom_energies(
        dict(members[0].atom_energies)
    )


def flexible_molecule(seed: int, runs: Path) -> tuple[Any, dict[str, Any]]:
    """A model of 3BPA at 300 K with labels of GFN2-xTB, and its parts: 400, 50 and 50 structures, and hot ones."""
    from hot_dynamics import made

    from huefield.core.structure import joined
    from huefield.data.dataset import open_part

    blocks = {
        name: joined(list(open_part(name, [path]).blocks()), name) for name, path in made(runs / "3bpa-xtb").items()
    }
    parts = dealt(blocks.pop("300 K"), seed, "300 K") | blocks
    return trained_members(parts, runs / f"3bpa{seed}", seed=10 * seed, batch_size=4), parts


def unseen_formula(seed: int, runs: Path) -> tuple[Any, dict[str, Any]]:
    """A model of the bundled data at ωB97X/6-31G(d) without C3H8O, tested on reactions of Transition1x."""
    from huefield.core.structure import joined
    from huefield.data.bundled.sets import bundled
    from huefield.data.dataset import open_part

    whole = joined(list(bundled(level_of_theory="wb97x/6-31g(d)").blocks.values()), "bundled")
    file = SHARED / "transition1x" / "t1x_mini.h5"
    reactions = joined(list(open_part("reactions", [file]).blocks()), "Transition1x")
    known = whole.select(np.array([sorted(each.atomic_numbers) != PROPANOL for each in whole]))
    parts = dealt(known, seed, "known groups") | {"reactions of Transition1x": reactions}
    return trained_members(parts, runs / f"transition1x{seed}", seed=10 * seed, batch_size=8), parts


def one_molecule(seed: int, runs: Path) -> tuple[Any, dict[str, Any]]:
    """A model of ethanol and isolated atoms, tested on methanol, a leaving hydrogen atom and dimers."""
    from huefield.core.structure import joined
    from huefield.data.dataset import open_part
    from huefield.data.references import IsolatedReferences

    def read(file: str) -> Any:
        return joined(list(open_part(file, [SHARED / "ethanol_pbe_svp" / f"{file}.xyz"]).blocks()), file)

    both = read("test_eth_meth")
    parts = dealt(read("train"), seed, "ethanol") | {
        "methanol": both.select(np.array([group == "methanol" for group in both.groups])),
        "a hydrogen atom leaves, energies only": read("test_H_removal"),
        "dimers of atoms, energies only": read("test_dimers"),
    }
    parts["train"] = joined([parts["train"], read("isolated_atoms")], "train")
    model = trained_members(
        parts, runs / f"ethanol{seed}", seed=10 * seed, batch_size=8, references=IsolatedReferences()
    )
    return model, parts


def dealt(known: Any, seed: int, title: str) -> dict[str, Any]:
    """Eight tenths for training, one for validation and one as the test of structures like them."""
    order = np.random.default_rng(seed).permutation(len(known))
    ends = int(0.8 * len(known)), int(0.9 * len(known))
    chosen = {"train": order[: ends[0]], "validation": order[ends[0] : ends[1]], title: order[ends[1] :]}
    return {name: known.select(np.isin(np.arange(len(known)), rows)) for name, rows in chosen.items()}


def reproduced(name: str, seed: int, runs: Path) -> tuple[Any, dict[str, Any]]:
    """A model of ``huefield reproduce``, and the parts of its data."""
    import huefield
    from huefield.core.structure import joined
    from huefield.reproduce.sources import source_named

    source, folder = source_named(name), runs / name / f"seed-{seed}"
    given = source.data(seed, folder).load()
    tests = source.test_parts(given)
    chosen = {part: given[part] for part in ("train", "validation")}
    chosen |= {test.title: tests[test.part] for test in source.tests}
    parts = {title: joined(list(part.blocks()), title) for title, part in chosen.items()}
    return huefield.load(folder / "local" / "run" / "model.safetensors").with_calibration(None), parts
