r"""The fit of the stress part of a coherent calibration.

The variance of a component of the stress is

    a·(noise process) + d_S·(rest) + s·(members),

where a and s are those of energies and forces, since all three come from one energy function. The rest is derived from
that of the forces by an assumption (:mod:`huefield.core.strain`): errors that add up over a cell make it too small. It
has a factor d_S of its own, which together with the degrees of freedom ν of the errors minimises the mean of
−log t_ν(error of a component) and the prior of :mod:`huefield.evaluation.coherent`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from huefield.core.strain import voigt
from huefield.core.tails import log_density_with_tails
from huefield.evaluation.coherent import (
    FEWEST_FITTED,
    LARGEST_LOG,
    NORMAL_FROM,
    PRIOR_INVERSE_DOF,
    PRIOR_LOG,
    VarianceParts,
)
from huefield.model.calibration import FEWEST
from huefield.model.joint_calibration import CoherentCalibration
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError

START = (0.0, 0.1)
"""log d_S and 1/ν at the start of the fit."""


def with_stress(
    calibration: CoherentCalibration, predictions: Predictions
) -> tuple[CoherentCalibration, tuple[str, ...]]:
    """The calibration of energies and forces with a factor and tails of stresses, and remarks on the fit.

    Args:
        calibration: fitted to energies and forces.
        predictions: uncalibrated predictions for the structures of that fit.
    """
    parts = stress_parts(predictions)
    if parts is None:
        return calibration, ()
    usable = parts.usable()
    if len(usable) < FEWEST or not usable.error.any():
        return calibration, (f"stresses take no part in the fit: {len(usable)} errors are too few",)
    structures = len(usable) / 6
    factor, dof = fit_stress(usable, calibration.noise, calibration.spread, structures)
    tails = calibration.tails.model_copy(update={"observed_stress": dof})
    return calibration.model_copy(update={"stress_diagonal": factor, "tails": tails}), ()


def stress_parts(predictions: Predictions) -> VarianceParts | None:
    """Errors of observed stresses and the parts of their variances; None if there are none."""
    found, kept = predictions.stress, predictions.stress_observed
    if found is None or not kept.any():
        return None
    target = 0.5 * (predictions.structures.stress + np.swapaxes(predictions.structures.stress, 1, 2))
    return VarianceParts.of(_components(found), voigt(target), kept)


def fit_stress(parts: VarianceParts, noise: float, spread: float, structures: float) -> tuple[float, float]:
    """The factor of the rest and the degrees of freedom; some hundreds for normal errors.

    Args:
        parts: errors of stress components and the parts of their variances.
        noise: factor of the noise process.
        spread: factor of the members.
        structures: number of structures that the errors are from.
    """
    with jax.enable_x64(True):
        error, *variances = jnp.asarray(parts.stacked())
        known = noise * variances[0] + spread * variances[2]

        def objective(x: Float[Array, " 2"]) -> Float[Array, ""]:
            prior = 0.5 * (x[0] / PRIOR_LOG) ** 2 + x[1] / PRIOR_INVERSE_DOF
            density = log_density_with_tails(error, known + jnp.exp(x[0]) * variances[1], 1.0 / x[1])
            return prior / structures - jnp.mean(density)

        compiled = jax.jit(jax.value_and_grad(objective))
        found = minimize(
            lambda x: tuple(np.asarray(v, float) for v in compiled(jnp.asarray(x))),
            np.array(START),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-LARGEST_LOG, LARGEST_LOG), (1.0 / (2 * NORMAL_FROM), 1.0 / FEWEST_FITTED)],
        )
    if not (np.isfinite(found.x).all() and np.isfinite(found.fun)):
        raise HuefieldError(
            f"the fit of the calibration of stresses failed ({found.message}): are there stresses or variances that "
            "are NaN or of absurd size?"
        )
    return float(np.exp(found.x[0])), 1.0 / float(found.x[1])


def _components(found: Marginals) -> Marginals:
    """The six independent components of each stress."""
    columns = (found.mean, found.variance, found.aleatoric_var, found.epistemic_var)
    mean, variance, noise, spread = (None if each is None else voigt(each) for each in columns)
    diagonal = None if found.diagonal_var is None else voigt(found.diagonal_var)
    assert mean is not None and variance is not None  # noqa: S101, PT018 - marginals have both
    return Marginals(mean, variance, noise, spread, None, diagonal)
