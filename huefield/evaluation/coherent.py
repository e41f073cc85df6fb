r"""The fit of a coherent calibration: factors for the parts of the covariance, and the tails of the errors.

The variance of an energy or a force component is

    a·(noise process) + d·(rest) + s·(members),

where a and s are the same for energies and forces, since both come from one energy function, and the rest has a factor
d of its own for energies and for forces. The factors and the degrees of freedom ν of both quantities minimise

    mean of −log t_ν(error of an energy) + mean of −log t_ν(error of a force component) + prior.

Energies count as much as forces here, because the factors of the parts they share would otherwise be those of the
forces, which are many more. The prior is worth about one structure: it decides only what data leave open, such as the
factor of a part that is always negligible.

Noise that grows with the distance to the training data is fitted in two steps, with s = 1: the factors of the energy
first, then that of the rest of the forces. A joint fit would reach a lower objective on validation data, but it may
explain their errors by the spread of the members, which grows too little for new molecules.

The objective may have several minima, since one part can explain the errors in place of another. The fit therefore
starts once from the model as it is, and once with each factor far above the others; the lowest minimum counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.optimize import minimize, minimize_scalar

from huefield.core.tails import joint_log_density, log_density_with_tails
from huefield.model.calibration import FEWEST
from huefield.model.joint_calibration import CoherentCalibration, Tails
from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError

PRIOR_LOG = 2.0
"""Standard deviation of the logarithm of a factor in the prior."""
PRIOR_INVERSE_DOF = 0.2
"""Mean of 1/ν in the prior, an exponential distribution: normal tails unless the errors say otherwise."""
LARGEST_LOG = 12.0
"""Bound of |log factor|."""
FEWEST_FITTED = 3.0
"""Smallest ν of a fit. Towards ν = 2 the standard deviation of a t distribution, which error bars are, grows without
bound: at ν = 2.05 it is 6.4 times the scale, at ν = 3 it is 1.7 times."""
START_LOG = 4.0
"""|log factor| at the start of a fit: far enough for a part to explain all errors by itself."""
START_INVERSE_DOF = 0.1
"""1/ν at the start of a fit."""
SAME_OBJECTIVE = 1e-9
"""Difference of two objectives that is rounding."""
NORMAL_FROM = 200.0
"""ν from which the distribution counts as normal."""
NEGLIGIBLE = 1e-3
"""Error of values that vanish by symmetry, relative to the error that a tenth exceeds, which few outliers change."""
ROUNDING, OF_ROUNDING = 1e-2, 10.0
"""The same with rounding of single precision. It shows in the noise of these values, too: their noise is below the
first number, and their error at most the second number times their noise."""
MOST = 300_000
"""Largest number of force components for the fit; a random selection beyond it."""
NO_DATA = "no data for a calibration: no energy and no force was both predicted and observed"
NAMES = ("noise", "energy_diagonal", "force_diagonal", "spread")
SPREAD = NAMES.index("spread")
OF_ENERGIES = (NAMES.index("noise"), NAMES.index("energy_diagonal"), len(NAMES))
"""Parameters of the fit that energies have: two factors, and 1/ν."""


@dataclass(frozen=True, eq=False)
class VarianceParts:
    """Errors of observed values of one quantity and the parts of their predicted variances."""

    error: Float[np.ndarray, " n"]
    noise: Float[np.ndarray, " n"]
    """Of the aleatoric columns."""
    diagonal: Float[np.ndarray, " n"]
    spread: Float[np.ndarray, " n"]
    """Between members."""

    @classmethod
    def of(
        cls, found: Marginals, target: Float[np.ndarray, " n *d"], observed: Bool[np.ndarray, " n"]
    ) -> "VarianceParts":
        """Parts of the variances of observed values, by rows."""
        if found.aleatoric_var is None or found.epistemic_var is None or found.diagonal_var is None:
            raise HuefieldError(
                "a coherent calibration needs the parts of the variances, which only models of huefield give: use the "
                "method isotonic or scale for predictions of other codes"
            )
        noise = np.maximum(found.aleatoric_var - found.diagonal_var, 0.0)
        columns = (target - found.mean, noise, found.diagonal_var, found.epistemic_var)
        known = observed & found.finite()
        return cls(*(column[known].ravel() for column in columns))

    def __len__(self) -> int:
        return len(self.error)

    def usable(self) -> "VarianceParts":
        """Without values of zero variance and values that vanish by symmetry; at most ``MOST``."""
        kept = np.flatnonzero((self.noise + self.diagonal + self.spread > 0) & ~self.vanishing())
        if len(kept) > MOST:
            kept = np.sort(np.random.default_rng(0).permutation(kept)[:MOST])
        return VarianceParts(self.error[kept], self.noise[kept], self.diagonal[kept], self.spread[kept])

    def vanishing(self) -> Bool[np.ndarray, " n"]:
        """Values such as forces out of the plane of a molecule: no error and no noise of the energy function.

        The diagonal gives them a variance nevertheless. A fit that sets it to zero would have a density without bound.
        """
        typical = float(np.quantile(np.abs(self.error), 0.9)) if len(self) else 0.0
        noise = np.sqrt(self.noise + self.spread)
        rounding = np.clip(OF_ROUNDING * noise, NEGLIGIBLE * typical, ROUNDING * typical)
        return (np.abs(self.error) < rounding) & (noise < ROUNDING * typical)

    def stacked(self) -> Float[np.ndarray, "4 n"]:
        """Errors and parts in the units of the root mean square error."""
        scale = float(np.sqrt(np.mean(self.error**2)))
        return np.stack([self.error / scale, *(part / scale**2 for part in (self.noise, self.diagonal, self.spread))])


def fit_predictions(predictions: Predictions, *, grows: bool) -> tuple[CoherentCalibration, tuple[str, ...]]:
    """Fit to observed energies and forces, with remarks on quantities with too little data.

    Args:
        predictions: uncalibrated predictions for structures that the model was not trained on.
        grows: whether the noise grows with the distance to the training data.
    """
    block, parts, remarks = predictions.structures, {}, []
    for name, found, target, observed in (
        ("energies", predictions.energy, block.energy, block.has_energy),
        ("forces", predictions.forces, block.forces, predictions.atoms_observed),
    ):
        if found is None or not observed.any():
            continue
        part = VarianceParts.of(found, target, observed)
        if fault := _fault(name, part.usable()):
            remarks.append(f"{name} take no part in the fit: {fault}")
        else:
            parts[name] = part
    if not parts:
        raise HuefieldError("; ".join(remarks) or NO_DATA)
    fitted = fit_coherent(parts.get("energies"), parts.get("forces"), structures=len(predictions), grows=grows)
    return fitted, tuple(remarks)


def fit_coherent(
    energy: VarianceParts | None,
    forces: VarianceParts | None,
    *,
    tails: bool = True,
    structures: int | None = None,
    grows: bool = False,
) -> CoherentCalibration:
    """Fit factors and tails.

    Args:
        energy: errors of energies; None for none.
        forces: errors of force components; None for none.
        tails: whether to fit degrees of freedom; otherwise errors are normal.
        structures: number of structures that the errors are from; None if each error is from one.
        grows: whether the noise grows with the distance to the training data.
    """
    given = {
        name: _checked(name, part) for name, part in (("energies", energy), ("forces", forces)) if part is not None
    }
    if not given:
        raise HuefieldError(NO_DATA)
    count = structures or min(map(len, given.values()))
    with jax.enable_x64(True):
        data = {name: jnp.asarray(part.stacked()) for name, part in given.items()}
        fixed = {SPREAD: 0.0} if grows else {}
        if grows and "energies" in data:
            energies = {"energies": data["energies"]}
            of_energies = _best(lambda x: _objective(x, energies, min(count, len(given["energies"])), tails), fixed)
            fixed |= {index: float(of_energies[index]) for index in OF_ENERGIES}
        found = _best(lambda x: _objective(x, data, count, tails), fixed)
    factors = {name: float(np.exp(x)) for name, x in zip(NAMES, found[:4], strict=True)}
    dof = [
        _dof(x) if tails and name in given else None for x, name in zip(found[4:], ("energies", "forces"), strict=True)
    ]
    return CoherentCalibration(**factors, tails=Tails(energy=dof[0], forces=dof[1]))


def _starts() -> Float[np.ndarray, "s 6"]:
    """Starts of the fit: no calibration, and each factor in turn far above the others."""
    factors = np.full((len(NAMES), len(NAMES)), -START_LOG) + 2 * START_LOG * np.eye(len(NAMES))
    inverse_dof = np.full((len(NAMES) + 1, 2), START_INVERSE_DOF)
    return np.hstack([np.vstack([np.zeros(len(NAMES)), factors]), inverse_dof])


def _best(
    objective: Callable[[Float[Array, " 6"]], Float[Array, ""]], fixed: Mapping[int, float]
) -> Float[np.ndarray, " 6"]:
    """The lowest of the minima that the starts lead to; of equal ones the first.

    Args:
        objective: of the logarithms of the factors, and 1/ν of energies and of forces.
        fixed: parameters that keep these values.
    """
    compiled = jax.jit(jax.value_and_grad(objective))
    bounds = [(-LARGEST_LOG, LARGEST_LOG)] * 4 + [(1.0 / (2 * NORMAL_FROM), 1.0 / FEWEST_FITTED)] * 2
    bounds = [(fixed[index],) * 2 if index in fixed else bound for index, bound in enumerate(bounds)]
    found = [
        minimize(
            lambda x: tuple(np.asarray(v, float) for v in compiled(jnp.asarray(x))),
            np.clip(start, *np.transpose(bounds)),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-12},
        )
        for start in _starts()
    ]
    finite = [each for each in found if np.isfinite(each.x).all() and np.isfinite(each.fun)]
    if not finite:
        raise HuefieldError(
            f"the fit of the calibration failed ({found[0].message}): are there errors or variances that are NaN or of "
            "absurd size?"
        )
    lowest = min(each.fun for each in finite)
    return next(each.x for each in finite if each.fun <= lowest + SAME_OBJECTIVE)


def with_joint_tails(calibration: CoherentCalibration, predictions: Predictions) -> CoherentCalibration:
    """The calibration with tails of the energy and forces of a structure together.

    Args:
        calibration: factors and tails of single quantities.
        predictions: calibrated predictions for the structures of the fit.
    """
    quadratic = predictions.marginals.joint_quadratic
    if quadratic is None or np.isfinite(quadratic).sum() < FEWEST:
        return calibration
    known = np.isfinite(quadratic)
    count = predictions.marginals.joint_count
    count = 1.0 + 3.0 * predictions.structures.sizes if count is None else count
    dof = fit_joint_dof(quadratic[known], count[known])
    return calibration.model_copy(update={"tails": calibration.tails.model_copy(update={"joint": dof})})


def fit_joint_dof(quadratic: Float[np.ndarray, " n"], count: Float[np.ndarray, " n"]) -> float | None:
    """Degrees of freedom of the energy and all forces of a structure together.

    Args:
        quadratic: rᵀ Σ⁻¹ r of the residuals of each structure, calibrated.
        count: number of residuals of each structure.
    """

    def nll(inverse: float) -> float:
        density = joint_log_density(jnp.asarray(quadratic), jnp.zeros(len(count)), jnp.asarray(count), 1.0 / inverse)
        return -float(jnp.mean(density)) + inverse / PRIOR_INVERSE_DOF / len(count)

    with jax.enable_x64(True):
        found = minimize_scalar(nll, bounds=(1.0 / (2 * NORMAL_FROM), 1.0 / FEWEST_FITTED), method="bounded")
    return _dof(float(found.x))


def _checked(name: str, part: VarianceParts) -> VarianceParts:
    usable = part.usable()
    if fault := _fault(name, usable):
        raise HuefieldError(fault)
    return usable


def _fault(name: str, usable: VarianceParts) -> str:
    """Why errors cannot be fitted to; empty if they can."""
    if len(usable) < FEWEST:
        return (
            f"{len(usable)} errors of {name} with a predicted variance above zero are too few for a calibration, which "
            f"needs {FEWEST}"
        )
    if not usable.error.any():
        return f"all errors of {name} are exactly zero: predictions seem to be compared with themselves"
    return ""


def _dof(inverse: float) -> float | None:
    return None if 1.0 / inverse > NORMAL_FROM else float(1.0 / inverse)


def _objective(
    x: Float[Array, " 6"], data: dict[str, Float[Array, "4 n"]], structures: int, tails: bool
) -> Float[Array, ""]:
    noise, energy_diagonal, force_diagonal, spread = jnp.exp(x[:4])
    prior = 0.5 * jnp.sum((x[:4] / PRIOR_LOG) ** 2) + (jnp.sum(x[4:]) / PRIOR_INVERSE_DOF if tails else 0.0)
    total = prior / structures
    for name, diagonal, inverse in (("energies", energy_diagonal, x[4]), ("forces", force_diagonal, x[5])):
        if name in data:
            error, *parts = data[name]
            variance = noise * parts[0] + diagonal * parts[1] + spread * parts[2]
            total -= jnp.mean(log_density_with_tails(error, variance, 1.0 / inverse if tails else None))
    return total
