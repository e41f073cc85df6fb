"""Two data sets of different reference energies: each alone, both with tags, both without tags.

With tags, references are fitted together (huefield/data/pooled_references.py), or for comparison each set alone.

ANI-1x (ωB97X/6-31G(d), Cartesian d functions; 798 structures) and the bundled ωB97X/6-31G(d) set (spherical d
functions; 437 structures) are the same level of theory by name, but total energies differ by about 0.13 eV a molecule.
All trainings have the same network and the same number of steps per structure. Training, validation and test structures
are the same in all of them: a random split divides each data set as if it were alone, and without tags, where it would
divide everything at once, the parts are taken from the split with tags.

python benchmarks/datasets.py [--only NAME ...] [--core N] [--runs FOLDER]
"""

from pathlib import Path
from typing import Any

from study import HERE, SHARED, keep, kept, parser, scored, use_core

OUT = HERE / "results" / "datasets.json"
ANI1X = SHARED / "ani1x" / "ani1x_800.xyz"
LEVEL = "wb97x/6-31g(d)"
TAGS = ("ani1x", "bundled")
TRAIN_SHARE = 0.7
SPLIT = {"kind": "random", "fractions": {"train": TRAIN_SHARE, "validation": 0.1, "test": 0.2}, "seed": 0}
EPOCHS, BATCH, MEMBERS, FEATURES = 30, 4, 1, 32
STRUCTURES = {"ani1x": 798, "bundled": 437}
ROWS: dict[str, tuple[tuple[str, ...], bool]] = {
    "ani1x alone": (("ani1x",), False),
    "bundled alone": (("bundled",), False),
    "both with tags": (TAGS, True),
    "both with tags, each fitted alone": (TAGS, True),
    "both without tags": (TAGS, False),
}
"""Data sets of each training, and whether they have tags."""


def bundled_store(folder: Path) -> Path:
    """All structures of the bundled set in a store."""
    from huefield import __version__
    from huefield.core.structure import joined
    from huefield.data.bundled.sets import bundled
    from huefield.data.store.format import Provenance, SourceInfo
    from huefield.data.store.writer import StoreWriter

    path = folder / "bundled.hues"
    if not path.exists():
        source = SourceInfo(path="bundled", bytes=0, modified_ns=0)
        made = Provenance(huefield=__version__, precision="float64", sources=(source,))
        with StoreWriter(path, made) as writer:
            writer.append(joined(list(bundled(level_of_theory=LEVEL).blocks.values()), "bundled"))
            writer.finish()
    return path


def data_of(tags: tuple[str, ...], tagged: bool, folder: Path) -> dict[str, Any]:
    """Configuration of the data."""
    paths = {"ani1x": str(ANI1X), "bundled": str(bundled_store(folder))}
    entries = [{"path": paths[tag], "tag": tag} if tagged else paths[tag] for tag in tags]
    split = SPLIT if tagged or len(tags) == 1 else {"kind": "file", "path": str(tagged_split(tags, folder))}
    return {"kind": "files", "train": entries, "split": split}


def tagged_split(tags: tuple[str, ...], folder: Path) -> Path:
    """A file with the parts that data sets with tags are split into."""
    import json

    from huefield.data.dataset import FileData

    parts = FileData.model_validate(data_of(tags, True, folder)).load()
    path = folder / "split.json"
    path.write_text(json.dumps({name: part.indices.tolist() for name, part in parts.items()}))
    return path


def config_of(tags: tuple[str, ...], tagged: bool, folder: Path) -> Any:
    """A small network with the stages of the preset ``small``, and as many steps per structure for all data."""
    from huefield.data.dataset import FileData
    from huefield.potentials import PaiNN
    from huefield.training.presets import three_stages, with_care

    structures = sum(int(TRAIN_SHARE * STRUCTURES[tag]) for tag in tags)
    steps = EPOCHS * structures // BATCH
    parts = (steps * 12 // 18, steps * 2 // 18, steps * 4 // 18)
    return with_care(
        FileData.model_validate(data_of(tags, tagged, folder)),
        PaiNN.Config(features=FEATURES),
        three_stages(parts, 1e-2, 5e-4),
        members=MEMBERS,
        batch_size=BATCH,
        validate_every=max(steps // 20, 1),
        checkpoint_every=500,
    )


def fitted_alone(config: Any) -> Any:
    """The configuration with references that are fitted to each data set alone."""
    from huefield.data.composition import symbol
    from huefield.data.references import EnergyChunk, GivenReferences, fitted_references

    found = fitted_references(EnergyChunk.from_block(block) for block in config.data.load()["train"].blocks())
    energies = {tag: {symbol(z): energy for z, energy in row.items()} for tag, row in found.energies_ev.items()}
    return config.model_copy(update={"references": GivenReferences(energies_ev=energies)})


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Train, and test on the test structures of each data set."""
    from time import process_time

    from huefield.data.dataset import FileData
    from huefield.training import train

    tags, tagged = ROWS[name]
    start = process_time()
    config = config_of(tags, tagged, folder)
    if name.endswith("each fitted alone"):
        config = fitted_alone(config)
    trained = train(config, folder / name.replace(",", "").replace(" ", "-"))
    seconds = process_time() - start
    tests = {tag: FileData.model_validate(data_of((tag,), False, folder)).load()["test"] for tag in tags}
    found = {
        tag: scored(trained.ensemble.with_dataset(tag) if tagged else trained.ensemble, part).as_dict()
        for tag, part in tests.items()
    }
    return {"cpu_seconds": round(seconds), "test": found}


def main() -> None:
    """Train what is not in the results yet."""
    options = parser(__doc__, ROWS)
    options.add_argument("--runs", type=Path, default=HERE / "runs" / "datasets", help="folder of the runs")
    given = options.parse_args()
    use_core(given.core)
    given.runs.mkdir(parents=True, exist_ok=True)
    for name in given.only or ROWS:
        if name not in kept(OUT) and not given.draw:
            keep(OUT, measure(name, given.runs), name)
    for name, row in kept(OUT).items():
        for tag, scores in row["test"].items():
            e, f = scores["energy"], scores["forces"]
            print(f"{name:34} {tag:8} E {e['rmse']:.4f} {e['mae']:.4f} F {f['rmse']:.4f} {f['mae']:.4f}")


if __name__ == "__main__":
    main()
