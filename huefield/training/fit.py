"""Train an ensemble on one batch in memory, with the loop of every run.

The loop itself is in :mod:`huefield.training.run`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from huefield.core import Graph, Labels
from huefield.data.batches.batching import Batch, Place
from huefield.model.ensemble import Ensemble
from huefield.support.errors import HuefieldError
from huefield.training.feed import AbstractFeed
from huefield.training.mesh import Layout, MeshConfig
from huefield.training.reports import OnTrainingEvent, ValidationReport
from huefield.training.run import Run
from huefield.training.setting import LoopSettings, Setting
from huefield.training.stages import AbstractStage
from huefield.training.step import OptimiserConfig
from huefield.training.validation import Validator

DEFAULT_OPTIMISER = OptimiserConfig()
NEVER = 10**9


def fit(
    ensemble: Ensemble,
    graph: Graph,
    labels: Labels,
    stages: Sequence[AbstractStage],
    *,
    optimiser: OptimiserConfig = DEFAULT_OPTIMISER,
    report_every: int = 500,
    report: OnTrainingEvent = lambda event: None,
) -> Ensemble:
    """Train all members on one batch, stage after stage.

    Returns the parameters after the last step, or their moving average if ``optimiser.average_decay`` is not 0. A stage
    of squared errors hands its best parameters over to the next stage, other stages their last ones. The batch is also
    the validation data, from which a stage may set its first noise levels.

    Args:
        ensemble: initial members.
        graph: the structures.
        labels: their energies and forces.
        stages: what to minimise, in order.
        optimiser: settings of the optimiser.
        report_every: steps between two reports.
        report: receives progress and messages.
    """
    noise = ensemble.members.noise
    for index, stage in enumerate(stages):
        if stage.trains_noise and not noise.has_variance:
            raise HuefieldError(
                f"stage {index + 1} ({type(stage).__name__}) trains the noise, but {type(noise).__name__} has none"
            )
    batch = Batch(graph, labels, jnp.ones(graph.partition.num_structures, bool))
    layout = Layout(ensemble.num_members, MeshConfig(), jax.devices()[:1])
    feed = OneBatch(batch, layout)
    double = jnp.result_type(float) == jnp.float64
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            loop=LoopSettings(
                stages=tuple(stages),
                optimiser=optimiser,
                precision="float64" if double else "float32",
                validate_every=NEVER,
                checkpoint_every=NEVER,
                report_every=report_every,
            ),
            layout=layout,
            validator=Validator(
                [layout.stack({(0, 0): batch}, layout.shared)], layout, ensemble.strategy, noise.has_variance
            ),
            feed_for=lambda stage: feed,
            folder=Path(folder),
            report=lambda event: None if isinstance(event, ValidationReport) else report(event),
            strategy=ensemble.strategy,
            atoms=float(jnp.sum(graph.partition.atom_mask)) / graph.partition.num_structures,
        )
        _, last = Run(setting, ensemble.members)()
        return eqx.tree_at(lambda e: e.members, ensemble, layout.on_device(last))


class OneBatch(AbstractFeed):
    """The same batch for all members and steps."""

    def __init__(self, batch: Batch, layout: Layout) -> None:
        self._numbers = [np.arange(batch.graph.partition.num_structures)] * layout.num_members
        self._batch = layout.stack(dict.fromkeys(layout.cells(layout.batches), batch), layout.batches)

    def indices(self, place: Place) -> Iterator[tuple[Place, list[Int[np.ndarray, " _"]]]]:
        """All structures, in every step."""
        return ((Place(0, number + 1), self._numbers) for number in count(place.position))

    def start(self, place: Place) -> Iterator[tuple[Place, Batch]]:
        """The batch, without end."""
        return ((Place(0, number + 1), self._batch) for number in count(place.position))
