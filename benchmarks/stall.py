"""Time that a PaiNN training step waits for its next batch; one run, JSON on standard output.

Run it with `python benchmarks/stall.py`. Batches of 64 structures of the bundled data are packed from memory, with
their neighbours, in a background thread, while the compiled step (64 features) runs on both cores. The rate of batches
alone is measured first, without the step.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import islice

import equinox as eqx
import jax
import numpy as np

from huefield import ForceField
from huefield.core.structure import pack
from huefield.data.batches.batching import Batch, BatchOrder, Place, choose_shapes, make_batch, prefetch, slot_buckets
from huefield.data.batches.neighbours import most_neighbours
from huefield.data.bundled.sets import bundled
from huefield.noise import ColoredNoise
from huefield.potentials import PaiNN
from huefield.training.stages import NLLStage
from huefield.training.step import MemberState, OptimiserConfig, StepMetrics, optimiser_for, start, step

CUTOFF_ANGSTROM = 5.0
STRUCTURES = 64
STEPS = 60


def batches() -> Iterator[Batch]:
    """Batches of the training structures in few shapes, without end."""
    data = bundled()
    block = data.blocks["train"]
    structures = list(block)
    neighbours = most_neighbours(block, CUTOFF_ANGSTROM)
    buckets = slot_buckets(block.sizes, neighbours, 1)
    shapes = choose_shapes(block.sizes, neighbours, buckets, STRUCTURES)
    energy = np.array([sum(data.atom_energies[int(z)] for z in s.atomic_numbers) for s in structures])
    for _, chosen in BatchOrder(buckets, STRUCTURES, jax.random.key(0)).start(Place(0, 0)):
        part = pack([structures[i] for i in chosen], chosen, "batch")
        yield make_batch(part, CUTOFF_ANGSTROM, shapes, energy_offset=energy[chosen])


def main() -> None:
    """Measure and print."""
    source = batches()
    list(islice(source, 20))
    begin = time.perf_counter()
    jax.block_until_ready(list(islice(source, STEPS)))
    alone = STEPS / (time.perf_counter() - begin)

    stage = NLLStage(steps=1000)
    optimiser = OptimiserConfig()
    potential = PaiNN.Config(elements=("H", "C", "N", "O"), features=64)
    config = ForceField.Config(potential=potential, noise=ColoredNoise.Config(gamma="atom"))
    state = start(config.build(key=jax.random.key(0)), optimiser_for(stage, optimiser))

    @eqx.filter_jit(donate="all-except-first")
    def advance(batch: Batch, state: MemberState) -> tuple[MemberState, StepMetrics]:
        return step(state, batch.graph, batch.labels, stage, optimiser)

    waits, steps, ahead = [], [], prefetch(source, 4)
    for number in range(STEPS + 10):
        begin = time.perf_counter()
        batch = next(ahead)
        ready = time.perf_counter()
        state, metrics = jax.block_until_ready(advance(batch, state))
        if number >= 10:  # shapes compile in the first ones
            waits.append(ready - begin)
            steps.append(time.perf_counter() - ready)
    json.dump(
        {
            "batches_per_second_alone": alone,
            "steps_per_second": 1.0 / statistics.median(steps),
            "batches_to_steps": alone * statistics.median(steps),
            "wait_ms_median": 1e3 * statistics.median(waits),
            "wait_ms_most": 1e3 * max(waits),
            "share_of_time_waiting": sum(waits) / (sum(waits) + sum(steps)),
            "loss_is_finite": bool(np.isfinite(metrics.loss)),
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
