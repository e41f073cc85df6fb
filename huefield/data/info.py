"""Description of a store, a file or the data of a run, as lines and as a figure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from huefield.core.structure import TAG
from huefield.data.composition import symbol
from huefield.data.convert import read_any
from huefield.data.outliers import LabelSizes, Outliers
from huefield.data.readers.base import Fault, LeftOut, Remark, reader_option
from huefield.data.readers.detect import ReaderConfig
from huefield.data.references import AtomicReferences
from huefield.data.runs import REFERENCES, inputs_folder, is_run, parts_of_run
from huefield.data.store.store import Store, is_store
from huefield.data.summary import DataSummary, Distribution, describe, summarise_data
from huefield.support.errors import HuefieldError
from huefield.support.plots import ALEATORIC, EPISTEMIC, TRUTH, publication_style

SHOWN_ELEMENTS = 12
BINS = 60


@dataclass(frozen=True, eq=False)
class Info:
    """Description of a store, a file or the data of a run."""

    path: Path
    store: Store | None
    """The store; None for a file."""
    summary: DataSummary
    faults: list[Fault]
    """Frames of a file that cannot be used."""
    left_out: list[LeftOut]
    """Structures that the reader of a file left out by its own rules."""
    remarks: list[Remark]
    """Remarks of the reader of a file."""
    outliers: list[Outliers]
    """Impossible and unusual labels."""
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of structures of each data set in each part of the data of a run."""
    references: AtomicReferences | None = None
    """Energies of isolated atoms of a run."""

    def lines(self) -> list[str]:
        """The lines that ``huefield data info`` prints."""
        lines = describe(self.summary)
        if self.store is not None:
            lines = [*_store_lines(self.store), *lines]
        lines += _part_lines(self.parts, self.references)
        if self.left_out:
            count, reason = sum(part.count for part in self.left_out), self.left_out[0].reason
            lines.append(f"left out          {count} by the reader: {reason}")
        lines += [f"remark            {remark.advised(reader_option)}" for remark in self.remarks]
        for found in self.outliers:
            lines.append(f"{'wrong label' if found.certain else 'unusual label':18}{found.frames}")
        if self.faults:
            lines.append(f"bad frames        {len(self.faults)}, the first: {self.faults[0]}")
        return lines


def look_into(path: Path, reader: ReaderConfig | None = None, *, verify: bool = False) -> Info:
    """Describe a store, a file or the data of a run in one pass over its structures.

    Args:
        path: a store, a file that readers know, or the folder of a run.
        reader: how to read a file; None to find out from the file.
        verify: whether to verify all checksums of a store first.
    """
    store = Store.open(path) if is_store(path) else None
    if verify and store is None:
        raise HuefieldError(f"{path} is not a store and has no checksums: omit --verify, or convert it to a store")
    if verify and store is not None:
        store.verify()
    faults: list[Fault] = []
    left_out: list[LeftOut] = []
    remarks: list[Remark] = []
    parts = parts_of_run(path, remarks.append) if store is None and path.is_dir() and is_run(path) else {}
    blocks = (
        (block for part in parts.values() for block in part.blocks())
        if parts
        else read_any(path, reader, on_fault=faults.append, on_left_out=left_out.append, on_remark=remarks.append)
    )
    labels = LabelSizes()
    summary = summarise_data(labels.through(blocks), rng=np.random.default_rng(0))
    counts = {name: part.datasets for name, part in parts.items()}
    references = AtomicReferences.load(inputs_folder(path) / REFERENCES) if parts else None
    return Info(path, store, summary, faults, left_out, remarks, labels.outliers(), counts, references)


def _part_lines(parts: Mapping[str, Mapping[str, int]], references: AtomicReferences | None) -> Iterator[str]:
    """Structures of each part and data set of a run, and energies of isolated atoms."""
    for name, counts in parts.items():
        named = ", ".join(f"{count} of {tag}" for tag, count in counts.items() if tag != TAG)
        yield f"part {name:13}{sum(counts.values())} structures" + (f": {named}" if named else "")
    for tag, row in {} if references is None else references.energies_ev.items():
        whose = "" if tag == TAG else f"{tag}: "
        yield f"references        {whose}" + ", ".join(f"{symbol(z)} {energy:.4f}" for z, energy in row.items()) + " eV"


def _store_lines(store: Store) -> list[str]:
    made, manifest = store.provenance, store.manifest
    lines = [f"store             {store.path}, {manifest.precision}, by huefield {made.huefield}"]
    if manifest.left_out:
        lines.append(f"left out          {manifest.left_out} by the readers")
    if manifest.faults:
        lines.append(f"bad frames        {manifest.faults}, left out, listed in {store.path / 'faults.txt'}")
    return lines


def draw_summary(summary: DataSummary, title: str) -> Figure:
    """Six panels: sizes, elements, labels, energies, forces and shortest distances."""
    with publication_style():
        drawing = Figure(figsize=(7.0, 4.2), layout="constrained")
        sizes, elements, labels, energy, force, distance = drawing.subplots(2, 3).flat
        text = f"{title}: {summary.structures} structures, {summary.atoms} atoms".replace("$", r"\$")  # no formulas
        drawing.suptitle(text, fontsize=9)
        draw_sizes(sizes, summary)
        draw_elements(elements, summary)
        draw_labels(labels, summary)
        draw_distribution(energy, summary.energy_per_atom, "energy per atom (eV)", "structures", scale="log")
        draw_distribution(force, summary.force_norm, "force on an atom (eV/Å)", "atoms", scale="log")
        draw_distribution(distance, summary.shortest_distance, "shortest distance (Å)", "structures")
        drawing.draw_without_rendering()
    return drawing


def draw_sizes(ax: Axes, summary: DataSummary) -> None:
    """Histogram of the number of atoms in a structure."""
    ax.bar(np.arange(len(summary.sizes)), summary.sizes, width=1.0, color=EPISTEMIC)
    ax.set(xlabel="atoms in a structure", ylabel="structures", xlim=(summary.smallest - 1, len(summary.sizes)))
    ax.locator_params(axis="x", integer=True)


def draw_elements(ax: Axes, summary: DataSummary) -> None:
    """Number of atoms of the most frequent elements."""
    shown = dict(list(summary.elements.items())[:SHOWN_ELEMENTS])
    more = f" ({SHOWN_ELEMENTS} most frequent)" if len(summary.elements) > SHOWN_ELEMENTS else ""
    ax.bar(list(shown), list(shown.values()), color=EPISTEMIC)
    ax.set(ylabel="atoms", yscale="log", ylim=(0.5, None), xlabel="element" + more)


def draw_labels(ax: Axes, summary: DataSummary) -> None:
    """Fraction of structures with each label."""
    counts = [summary.with_energy, summary.with_forces, summary.with_stress, summary.periodic]
    ax.bar(["energy", "forces", "stress", "periodic"], np.array(counts) / summary.structures, color=TRUTH)
    ax.set(ylabel="fraction of structures", ylim=(0, 1.05))


def draw_distribution(ax: Axes, values: Distribution, name: str, what: str, *, scale: str = "linear") -> None:
    """Histogram of the sample of a distribution."""
    ax.set(xlabel=name, ylabel=f"{what} in sample")
    if not values.count:
        ax.text(0.5, 0.5, "none", transform=ax.transAxes, ha="center", color=TRUTH)
        return
    ax.hist(values.sample, bins=BINS, color=ALEATORIC)
    ax.ticklabel_format(axis="x", useOffset=False)
    ax.locator_params(axis="x", nbins=4)
    ax.set_yscale(scale)
