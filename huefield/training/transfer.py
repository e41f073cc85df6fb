"""Start from a saved model: continue its training, or add a noise model to its mean."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from huefield.baselines import BaselineConfig, BaselineLike, as_baseline
from huefield.model.ensemble import Ensemble
from huefield.model.forcefield import ForceField
from huefield.support.errors import HuefieldError
from huefield.support.trees import named_arrays, with_arrays
from huefield.training.checkpoint import differences


def require_transferable(saved: Ensemble, config: ForceField.Config, members: range) -> None:
    """Raise unless a saved ensemble has these members, and a mean of this architecture."""
    if members.stop > saved.num_members:
        raise HuefieldError(
            f"there is no member {members.stop - 1} in the model to start from, which has {saved.num_members}, counted "
            f"from 0: set members to {saved.num_members} at most"
        )
    if saved.members.correction != config.correction:
        raise HuefieldError(
            f"the model to start from has correction: {saved.members.correction}, but this run has "
            f"{config.correction}: make them equal"
        )
    old, new = (c.model_dump(mode="json") for c in (saved.members.potential.config, config.potential))
    changed = differences(old, new, "model.potential")
    if changed:
        raise HuefieldError(
            f"the model to start from has another potential: {'; '.join(changed)}; use the settings of that model"
        )


def require_same_baseline(saved: Ensemble, baseline: BaselineConfig | None, given: BaselineLike | None = None) -> None:
    """Raise unless a saved ensemble corrects the baseline of a run.

    Args:
        saved: the ensemble.
        baseline: configuration of the baseline of the run; None for none.
        given: the calculator of a baseline of the kind ``ase``.
    """
    old = None if saved.baseline is None else saved.baseline.config
    if old != baseline:
        titles = ["no baseline" if each is None else each.title for each in (old, baseline)]
        raise HuefieldError(
            f"the model to start from corrects {titles[0]}, but this run {titles[1]}: use the baseline of that model, "
            f"baseline: {'null' if old is None else old.model_dump(mode='json')}"
        )
    if saved.baseline is not None and given is not None:
        saved.baseline.require_same(as_baseline(given))


def transferred(saved: Ensemble, config: ForceField.Config, members: range) -> Ensemble:
    """The members of a saved ensemble in a new architecture, which may differ in its noise model.

    All parameters are copied, except noise outputs and noise models of another kind, which start as in a new model.

    Args:
        saved: the ensemble.
        config: the architecture to train.
        members: numbers of the members to copy.
    """
    saved = replace(saved, members=replace(saved.members, novelty=None))
    same_noise = saved.members.noise.config == config.noise
    return Ensemble.from_members(
        [saved.member(m) if same_noise else _with_new_noise(saved.member(m), config, m) for m in members]
    )


def _with_new_noise(saved: ForceField, config: ForceField.Config, seed: int) -> ForceField:
    fresh = config.build(key=jax.random.key(seed))
    old, new = named_arrays(saved.potential), named_arrays(fresh.potential)
    own = {name: bool(np.all(share)) for name, share in named_arrays(fresh.potential.serves_noise()).items()}
    taken = {name: leaf if own[name] else jnp.asarray(old[name]) for name, leaf in new.items()}
    return replace(fresh, potential=with_arrays(fresh.potential, taken))
