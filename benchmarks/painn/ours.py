"""Times huefield's potentials: energies, forces, noise levels and their gradients. Prints one JSON line.

python benchmarks/painn/ours.py JOB [--repeats N]
"""

from measure import LAYERS, MEMBERS, RADIAL_FUNCTIONS, Job, Sample, memory_mb, repeat, use_two_cores, work

use_two_cores()

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from cases import CUTOFF_ANGSTROM, ELEMENTS, System, systems  # noqa: E402

from huefield import Ensemble, ForceField  # noqa: E402
from huefield.core import Graph, Labels  # noqa: E402
from huefield.core.structure import Structure  # noqa: E402
from huefield.data.batches.batching import Batch, make_batch  # noqa: E402
from huefield.model.ensemble import compiled_joint  # noqa: E402
from huefield.noise import ColoredNoise, LocalNoise, VanillaNoise  # noqa: E402
from huefield.potentials import MACE, PaiNN  # noqa: E402
from huefield.training.stages import NLLStage, SquaredErrorStage  # noqa: E402
from huefield.training.step import MemberState, OptimiserConfig, StepMetrics, optimiser_for, start, step  # noqa: E402

Observed = tuple[Graph, Labels]
OPTIMISER = OptimiserConfig()
NOISE = {"colored": ColoredNoise.Config(gamma="atom"), "local": LocalNoise.Config(), "vanilla": VanillaNoise.Config()}


def config_of(job: Job) -> ForceField.Config:
    """The size of the other side's model, and a noise model."""
    potentials = {
        "painn": PaiNN.Config(
            elements=ELEMENTS,
            features=job.features,
            layers=LAYERS,
            radial_functions=RADIAL_FUNCTIONS,
            cutoff_angstrom=CUTOFF_ANGSTROM,
        ),
        "mace": MACE.Config(
            elements=ELEMENTS, channels=job.features, radial_widths=(64, 64, 64), cutoff_angstrom=CUTOFF_ANGSTROM
        ),
    }
    return ForceField.Config(potential=potentials[job.potential], noise=NOISE[job.noise])


def batch_of(structures: list[System]) -> Batch:
    """All structures in one batch, neighbours included, in a shape of its own."""
    return make_batch([structure_of(system) for system in structures], CUTOFF_ANGSTROM, ())


def structure_of(system: System) -> Structure:
    """A system as huefield has it."""
    atoms = system.atoms
    return Structure(
        atoms.numbers.astype(np.uint8), atoms.positions, np.array(atoms.cell), atoms.pbc, system.energy, system.forces
    )


class Training:
    """Steps on one batch, each from where the last one ended; the old state's memory is given back to the program."""

    def __init__(self, job: Job, batch: Batch) -> None:
        stage = SquaredErrorStage(steps=1000) if job.noise == "vanilla" else NLLStage(steps=1000)

        def one(observed: Observed, state: MemberState) -> tuple[MemberState, StepMetrics]:
            graph, labels = observed
            return step(state, graph, labels, stage, OPTIMISER)

        self.observed = (batch.graph, batch.labels)
        begin = eqx.filter_jit(lambda key: start(config_of(job).build(key=key), optimiser_for(stage, OPTIMISER)))
        self.state = begin(jax.random.key(0))  # compiled, as a training run does it: one by one, operations take 100 MB
        self.step: Any = eqx.filter_jit(one, donate="all-except-first")

    def __call__(self) -> None:
        """One step."""
        self.state, _ = jax.block_until_ready(self.step(self.observed, self.state))


def inference(job: Job, graph: Graph) -> Callable[[], None]:
    """The distribution of one member."""
    member = config_of(job).build(key=jax.random.key(0))
    predict = eqx.filter_jit(lambda model, given: model(given))
    return lambda: jax.block_until_ready(predict(member, graph)) and None


def ensemble(job: Job, graph: Graph) -> tuple[Callable[[], None], Callable[[], None]]:
    """The joint prediction of all members: the compiled program alone, and with the checks that users get."""
    members = Ensemble.build(config_of(job), MEMBERS, key=jax.random.key(0))
    return (
        lambda: jax.block_until_ready(compiled_joint(members, graph, False)) and None,
        lambda: jax.block_until_ready(members.predict(graph)) and None,
    )


def compilation(training: Training) -> dict[str, float]:
    """Seconds to trace the training step and to compile it (or to find it in the cache)."""
    begin = time.perf_counter()
    lowered = training.step.lower(training.observed, training.state)
    traced = time.perf_counter()
    lowered.compile()
    return {"trace": traced - begin, "compile": time.perf_counter() - traced}


def measure(job: Job, repeats: int) -> Sample:
    """Time a job."""
    batch = jax.block_until_ready(batch_of(systems(job.system)))
    atoms, found = (int(np.sum(mask)) for mask in (batch.graph.partition.atom_mask, batch.graph.neighbours.mask))
    parts: dict[str, float] = {}
    if job.kind == "compile":
        training, before = Training(job, batch), memory_mb("VmRSS")
        parts = compilation(training)
        seconds = [sum(parts.values())]
    else:
        run, checked = runs_of(job, batch)
        before = memory_mb("VmRSS")
        parts["first_call"] = repeat(run, 1)[0]
        repeat(run, 1)
        seconds = repeat(run, repeats)
        if checked is not None:
            repeat(checked, 2)
            parts["with_checks_median"] = float(np.median(repeat(checked, repeats)))
    return Sample(seconds, atoms, found, before, memory_mb("VmHWM"), parts)


def runs_of(job: Job, batch: Batch) -> tuple[Callable[[], None], Callable[[], None] | None]:
    """The function to repeat for a job, and its variant with checks if there is one."""
    if job.kind == "train":
        return Training(job, batch), None
    if job.kind == "inference":
        return inference(job, batch.graph), None
    return ensemble(job, batch.graph)


if __name__ == "__main__":
    work(measure)
