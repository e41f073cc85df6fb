"""Maps from predicted to calibrated variances, fitted to observed errors. They work with variances from any code.

Fit a calibration on data that the model was not trained on, as in ``IsotonicCalibration.fit(variance, error)``, and
call it with variances. A variance of exactly zero stays zero, because symmetry forbids that component to differ; fits
ignore such entries. Means do not change.

All of these maps scale marginal variances, of energies and forces separately. After that, the force noise is no longer
the derivative of the energy noise; only :class:`GammaCalibration` keeps the two coherent.

[B23] Busk, Schmidt, Winther, Vegge, Jørgensen, Phys. Chem. Chem. Phys. 25, 25828 (2023): isotonic recalibration.
[L22] Levi, Gispan, Giladi, Fetaya, Sensors 22, 5540 (2022): one scale for all variances.
[P02] Papadopoulos, Proedrou, Vovk, Gammerman, ECML 2002: split conformal prediction, with normalised scores.
[L23] Lee, Barber, Willett, arXiv:2306.06342v3: the same for observations in groups, such as the forces of a structure.
"""

from abc import abstractmethod
from itertools import pairwise
from types import ModuleType
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from pydantic import Field, model_validator
from scipy.optimize import isotonic_regression, minimize_scalar

from huefield.support.checks import require_finite, require_non_negative, require_shape
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

FEWEST = 10
"""Smallest number of errors for any fit."""
FEWEST_FOR_A_CURVE = 200
"""Smallest number of errors for isotonic regression (ten groups of twenty); with fewer, one factor is fitted."""
GROUP = 20
"""Errors that are averaged before the regression. On synthetic data of five kinds with 200 to 5 000 errors, groups of
10 to 50 were about equally good, and plain regression up to 1.3 nat worse."""
ONE_SIGMA = 0.6826894921370859
"""Probability of a normal distribution within one standard deviation of its mean."""
LARGEST_LOG = 14.0
"""Bound of |log factor| in the fit of γ."""
UNREACHED = (
    "no γ fits: the other parts of the variance are already too large, or the errors are far too large; use another "
    "method"
)
TABULATED_COVERAGES = (*(k / 200 for k in range(1, 200)), ONE_SIGMA, 0.997, 0.999, 0.9999)
"""Coverages for which a conformal calibration keeps interval widths."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFinite = Annotated[Finite, Field(gt=0)]


class AbstractCalibration(FrozenConfig):
    """A map from predicted to calibrated variances."""

    remark: str = Field("", description="a remark on the fit")

    @abstractmethod
    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Calibrated variances of an array of ``xp``, which is numpy or jax.numpy; zeros stay zeros."""

    def __call__(self, variance: ArrayLike) -> Float[np.ndarray, "*n"]:
        """Calibrated variances."""
        given = np.asarray(variance)
        values = given if np.issubdtype(given.dtype, np.floating) else given.astype(float)
        require_non_negative("variance", values)
        return np.asarray(self.calibrated_var(values, np))

    def traced(self, variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Calibrated variances, inside a compiled program."""
        return self.calibrated_var(variance, jnp)


class ScaleCalibration(AbstractCalibration):
    """All variances times one factor, [L22]."""

    kind: Literal["scale"] = "scale"
    factor: PositiveFinite = Field(description="factor of the variances")

    @classmethod
    def fit(cls, variance: ArrayLike, error: ArrayLike) -> "ScaleCalibration":
        """Maximum-likelihood factor, mean(error²/variance): the mean squared z-score becomes 1."""
        spread, squares = fittable(variance, error)
        return cls(factor=float(np.mean(squares / spread)))

    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Variances times the factor."""
        return self.factor * variance


class IsotonicCalibration(AbstractCalibration):
    """Expected squared error as a non-decreasing function of the variance, [B23]; piecewise linear between knots."""

    kind: Literal["isotonic"] = "isotonic"
    variances: tuple[PositiveFinite, ...] = Field(min_length=1, description="predicted variances at the knots")
    calibrated: tuple[PositiveFinite, ...] = Field(min_length=1, description="calibrated variances at the knots")
    outside: Literal["clip", "ratio"] = Field(
        "ratio",
        description="outside the knots: multiply by the factor of the nearest knot (ratio), so that structures of "
        "unusual uncertainty stay so, or take its variance (clip), as [B23] does",
    )

    @model_validator(mode="after")
    def _is_a_map(self) -> "IsotonicCalibration":
        if len(self.variances) != len(self.calibrated):
            raise HuefieldError(
                f"each knot needs a predicted and a calibrated variance, but there are {len(self.variances)} predicted "
                f"and {len(self.calibrated)} calibrated ones"
            )
        if any(b <= a for a, b in pairwise(self.variances)) or any(b < a for a, b in pairwise(self.calibrated)):
            raise HuefieldError("predicted variances of the knots must increase, and calibrated ones must not decrease")
        return self

    @classmethod
    def fit(
        cls,
        variance: ArrayLike,
        error: ArrayLike,
        *,
        group_size: int | None = None,
        outside: Literal["clip", "ratio"] = "ratio",
        structure: Int[np.ndarray, " n"] | None = None,
    ) -> "IsotonicCalibration":
        """Isotonic regression of squared errors on variances.

        Entries of similar variance are first averaged in groups, because the lowest knots of plain regression are
        single small errors, which give variances near zero. If there are few errors, errors of few structures, or equal
        variances, all variances are multiplied by one factor, as in :class:`ScaleCalibration`, and ``remark`` says so.

        Args:
            variance: predicted variances.
            error: observed errors, in the same order.
            group_size: entries per group, 1 for plain regression; None for the usual size.
            outside: see the field.
            structure: number of the structure of each entry, since errors within a structure are not independent; None
                if each entry is a structure of its own.
        """
        if group_size is not None and group_size < 1:
            raise HuefieldError(f"group_size must be at least 1, but is {group_size}")
        spread, squares = fittable(variance, error)
        distinct, sums, counts = _by_variance(spread, squares)
        owners = len(spread) if structure is None else len(np.unique(structure))
        if np.ptp(spread) == 0:
            return cls._of_one_factor(spread, squares, "all variances are equal: too little information")
        if group_size is None and len(spread) < FEWEST_FOR_A_CURVE:
            return cls._of_one_factor(spread, squares, f"{len(spread)} errors are too few")
        if owners < FEWEST:
            return cls._of_one_factor(spread, squares, f"errors of {owners} structures are too few")
        knots, values = _regression(*_grouped(distinct, sums, counts, group_size or GROUP))
        if len(knots) < 2:
            return cls._of_one_factor(spread, squares, f"one group of {len(spread)} errors is too little")
        return cls(variances=tuple(knots.tolist()), calibrated=tuple(values.tolist()), outside=outside)

    @classmethod
    def _of_one_factor(cls, spread: np.ndarray, squares: np.ndarray, why: str) -> "IsotonicCalibration":
        factor, middle = float(np.mean(squares / spread)), float(np.median(spread))
        return cls(
            variances=(middle,), calibrated=(factor * middle,), outside="ratio", remark=f"{why} for more than a factor"
        )

    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Linear interpolation between the knots; outside them, see ``outside``."""
        knots, values = xp.asarray(self.variances, variance.dtype), xp.asarray(self.calibrated, variance.dtype)
        found = xp.interp(variance, knots, values).astype(variance.dtype)
        if self.outside == "ratio":
            found = xp.where(variance < knots[0], variance * (values[0] / knots[0]), found)
            found = xp.where(variance > knots[-1], variance * (values[-1] / knots[-1]), found)
        return xp.where(variance > 0, found, variance)


class ConformalCalibration(AbstractCalibration):
    """Intervals mean ± q σ with a nominal coverage, [P02], whatever the distribution of the errors is.

    q is a quantile of ``|error|/σ``. Entries of one structure are not independent: following [L23], the quantile is
    that of a random entry of a new structure, where each structure of the fit has the same weight. As a calibration of
    variances it makes mean ± σ cover 68.27 %.

    The coverage is guaranteed (at least nominal, on average over draws of the data, for entries with a variance above
    zero) only if the data of the fit are exchangeable with new structures: drawn from the same distribution, and used
    for nothing else. Validation data that also selected the parameters or stopped the training do not qualify. With
    them the coverage is approximate, usually slightly too low. For the guarantee, fit on structures that neither
    training nor model selection has seen.
    """

    kind: Literal["conformal"] = "conformal"
    coverages: tuple[Finite, ...] = Field(min_length=1, description="nominal coverages, increasing")
    widths: tuple[Annotated[Finite, Field(ge=0)], ...] = Field(
        description="half-widths of the intervals in units of the predicted σ"
    )

    @classmethod
    def fit(
        cls, variance: ArrayLike, error: ArrayLike, structure: Int[np.ndarray, " n"] | None = None
    ) -> "ConformalCalibration":
        """Quantiles of ``|error|/σ``.

        Args:
            variance: predicted variances.
            error: observed errors, in the same order.
            structure: number of the structure of each entry; None if each entry is a structure of its own.
        """
        spread, squares = fittable(variance, error)
        usable = np.asarray(variance, float).ravel() > 0
        owner = np.arange(len(spread)) if structure is None else np.asarray(structure).ravel()[usable]
        _, index, entries = np.unique(owner, return_inverse=True, return_counts=True)
        scores = np.sqrt(squares / spread)
        order = np.argsort(scores)
        below = np.cumsum(1.0 / entries[index[order]]) / (len(entries) + 1)
        kept = [c for c in sorted(TABULATED_COVERAGES) if c <= below[-1] * (1 + 1e-12)]
        if ONE_SIGMA not in kept:
            raise HuefieldError(f"{len(entries)} structures are too few for conformal intervals: give at least 3")
        rows = np.searchsorted(below * (1 + 1e-12), kept)
        found = cls(coverages=tuple(kept), widths=tuple(scores[order][rows].tolist()))
        if not found.width(ONE_SIGMA):
            raise HuefieldError("most errors are exactly zero, so that intervals would have no width")
        return found

    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Variances whose square root is the half-width of the interval that covers 68.27 %."""
        return self.width(ONE_SIGMA) ** 2 * variance

    def width(self, coverage: float) -> float:
        """Half-width of the interval with this coverage, in units of the predicted σ."""
        enough = [width for kept, width in zip(self.coverages, self.widths, strict=True) if kept >= coverage]
        if not enough or coverage <= 0:
            raise HuefieldError(
                f"the coverage of an interval can be at most {self.coverages[-1]:.4g} with this calibration, not "
                f"{coverage:g}: fit it to more structures"
            )
        return enough[0]

    def half_width(self, variance: ArrayLike, coverage: float) -> Float[np.ndarray, "*n"]:
        """Half-widths of the intervals around predicted means."""
        return self.width(coverage) * np.sqrt(np.asarray(variance, float))


class GammaCalibration(FrozenConfig):
    """γ times one factor, the parameter that "can be adjusted post-hoc" ([J23] arXiv:2312.04174v1).

    Only the first term of the force variance γρ² + (∂ρ/∂r)² + (variance of the members) changes, and energies do not
    change: force noise stays the derivative of energy noise.
    """

    kind: Literal["gamma"] = "gamma"
    factor: PositiveFinite = Field(description="factor of γ")
    remark: str = Field("", description="a remark on the fit")

    @classmethod
    def fit(cls, gamma_var: ArrayLike, other_var: ArrayLike, error: ArrayLike) -> "GammaCalibration":
        """Maximum-likelihood factor.

        Args:
            gamma_var: the part of the force variances that is proportional to γ.
            other_var: the rest of the force variances.
            error: observed errors of force components.
        """
        spread, squares = fittable(gamma_var, error)
        rest = np.asarray(other_var, float).ravel()
        require_shape("other_var", rest, np.asarray(gamma_var).ravel().shape)
        rest = rest[np.asarray(gamma_var, float).ravel() > 0]

        def nll(log_factor: float) -> float:
            total = np.exp(log_factor) * spread + rest
            return float(np.mean(squares / total + np.log(total)))

        found = minimize_scalar(nll, bounds=(-LARGEST_LOG, LARGEST_LOG), method="bounded", options={"xatol": 1e-10})
        at_bound = abs(found.x) > 0.99 * LARGEST_LOG
        return cls(factor=float(np.exp(found.x)), remark=UNREACHED if at_bound else "")

    def __call__(self, gamma_var: ArrayLike, other_var: ArrayLike) -> Float[np.ndarray, "*n"]:
        """Calibrated force variances."""
        return self.factor * np.asarray(gamma_var, float) + np.asarray(other_var, float)


CalibrationConfig = Annotated[
    ScaleCalibration | IsotonicCalibration | ConformalCalibration, Field(discriminator="kind")
]


def fittable(variance: ArrayLike, error: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Flat arrays of variances and squared errors, without entries whose variance is zero."""
    spread, errors = np.asarray(variance, float).ravel(), np.asarray(error, float).ravel()
    require_shape("error", errors, spread.shape)
    require_finite("variance", spread)
    require_non_negative("variance", spread)
    require_finite("error", errors)
    usable = spread > 0
    if usable.sum() < FEWEST:
        raise HuefieldError(
            f"{usable.sum()} errors with a predicted variance above zero are too few for a calibration, which needs "
            f"{FEWEST} ({len(spread)} errors were given)"
        )
    if not errors[usable].any():
        raise HuefieldError("all errors are exactly zero: predictions seem to be compared with themselves")
    return spread[usable], errors[usable] ** 2


def _by_variance(spread: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted distinct variances, each with its sum of squared errors and its number of entries."""
    distinct, index, counts = np.unique(spread, return_inverse=True, return_counts=True)
    return distinct, np.bincount(index, weights=squares), counts.astype(float)


def _grouped(
    distinct: np.ndarray, sums: np.ndarray, counts: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean variance, mean squared error and size of groups of about ``size`` entries; ties are not split."""
    last = max(int(counts.sum() // size) - 1, 0)
    group = np.minimum((np.cumsum(counts) - counts) // size, last).astype(np.int64)
    weights = np.bincount(group, weights=counts)
    full = weights > 0
    means = [np.bincount(group, weights=total)[full] / weights[full] for total in (distinct * counts, sums)]
    return means[0], means[1], weights[full]


def _regression(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the isotonic regression of y on x: both ends of each plateau. A plateau at zero takes the next value."""
    fitted = isotonic_regression(y, weights=weights).x
    fitted = np.maximum(fitted, fitted[fitted > 0].min())
    inside = np.zeros(len(x), bool)
    inside[1:-1] = (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:])
    return x[~inside], fitted[~inside]
