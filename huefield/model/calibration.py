"""Maps from predicted to calibrated variances, fitted to errors that were observed. They serve any code's variances.

Each is fitted on data that the model was not trained on, as in ``IsotonicCalibration.fit(variance, error)``, and called
with variances. A variance of exactly zero stays zero: it is that of a component which cannot differ, by symmetry, and
no factor changes it; such entries are left out of every fit. Means are not touched.

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
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from scipy.optimize import isotonic_regression, minimize_scalar

from huefield.support.checks import require_finite, require_non_negative, require_shape
from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError

FEWEST = 10
"""Errors below which nothing is fitted."""
FEWEST_FOR_A_CURVE = 200
"""Errors below which isotonic regression is one factor for all: ten groups of twenty."""
GROUP = 20
"""Errors that are averaged before the regression: on synthetic data of five kinds, 200 to 5 000 errors, groups of 10 to
50 were about equally good, and plain regression up to 1.3 nat worse."""
ONE_SIGMA = 0.6826894921370859
"""How much of a normal distribution lies within one standard deviation."""
LARGEST_LOG = 14.0
"""Of the factor of γ, up or down."""
UNREACHED = "no γ fits: the rest of the variance is too large already, or errors are far beyond; calibrate otherwise"
COVERAGES = (*(k / 200 for k in range(1, 200)), ONE_SIGMA, 0.997, 0.999, 0.9999)
"""What conformal intervals are kept for."""


class AbstractCalibration(FrozenConfig):
    """A map from predicted to calibrated variances."""

    remark: str = Field("", description="what to know about the fit")

    @abstractmethod
    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Calibrated variances of an array that belongs to ``xp``, which is numpy or jax.numpy; zeros stay zeros."""

    def __call__(self, variance: ArrayLike) -> Float[np.ndarray, "*n"]:
        """Calibrated variances."""
        given = np.asarray(variance)
        values = given if np.issubdtype(given.dtype, np.floating) else given.astype(float)
        require_non_negative("variance", values)
        return np.asarray(self.calibrated_var(values, np))

    def traced(self, variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Calibrated variances, inside of compiled programs."""
        return self.calibrated_var(variance, jnp)


class ScaleCalibration(AbstractCalibration):
    """All variances times one factor, [L22]."""

    kind: Literal["scale"] = "scale"
    factor: PositiveFloat = Field(description="of variances")

    @classmethod
    def fit(cls, variance: ArrayLike, error: ArrayLike) -> "ScaleCalibration":
        """The factor of highest likelihood, mean(error²/variance); squared z-scores then are 1 on average."""
        spread, squares = fittable(variance, error)
        return cls(factor=float(np.mean(squares / spread)))

    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Times the factor."""
        return self.factor * variance


class IsotonicCalibration(AbstractCalibration):
    """The expected squared error as a function of the variance that never falls, [B23]: linear between knots."""

    kind: Literal["isotonic"] = "isotonic"
    variances: tuple[PositiveFloat, ...] = Field(min_length=1, description="predicted, at the knots")
    calibrated: tuple[PositiveFloat, ...] = Field(min_length=1, description="calibrated, at the knots")
    outside: Literal["clip", "ratio"] = Field(
        "clip", description="beyond the knots: the variance of the last knot (clip), or its factor (ratio)"
    )

    @model_validator(mode="after")
    def _is_a_map(self) -> "IsotonicCalibration":
        if len(self.variances) != len(self.calibrated):
            raise HuefieldError(
                f"{len(self.variances)} variances do not go with {len(self.calibrated)} calibrated ones"
            )
        if any(b <= a for a, b in pairwise(self.variances)) or any(b < a for a, b in pairwise(self.calibrated)):
            raise HuefieldError("variances of knots must rise, and calibrated ones must not fall")
        return self

    @classmethod
    def fit(
        cls,
        variance: ArrayLike,
        error: ArrayLike,
        *,
        group_size: int | None = None,
        outside: Literal["clip", "ratio"] = "clip",
        structure: Int[np.ndarray, " n"] | None = None,
    ) -> "IsotonicCalibration":
        """Isotonic regression of squared errors on variances.

        Entries of similar variance are averaged in groups first: the lowest knots of plain regression are single small
        errors, and variances near zero. Few errors, errors of few structures, or variances that are all alike give no
        curve: all variances are multiplied by one factor then, as :class:`ScaleCalibration` has it, and ``remark`` says
        so.

        Args:
            variance: predicted.
            error: observed, in the same order.
            group_size: entries in a group, 1 for plain regression; None for as many as is usual.
            outside: see the field.
            structure: the number of the structure of each entry, whose errors are not independent; None where each is
                one of its own.
        """
        if group_size is not None and group_size < 1:
            raise HuefieldError(f"a group has at least one entry, but group_size is {group_size}")
        spread, squares = fittable(variance, error)
        distinct, sums, counts = _by_variance(spread, squares)
        owners = len(spread) if structure is None else len(np.unique(structure))
        if np.ptp(spread) == 0:
            return cls._of_one_factor(spread, squares, "all variances are alike: too little")
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
        """Between the knots and beyond."""
        knots, values = xp.asarray(self.variances, variance.dtype), xp.asarray(self.calibrated, variance.dtype)
        found = xp.interp(variance, knots, values).astype(variance.dtype)
        if self.outside == "ratio":
            found = xp.where(variance < knots[0], variance * (values[0] / knots[0]), found)
            found = xp.where(variance > knots[-1], variance * (values[-1] / knots[-1]), found)
        return xp.where(variance > 0, found, variance)


class ConformalCalibration(AbstractCalibration):
    """Intervals mean ± q σ that hold at least the promised share of observations, [P02], whatever their law is.

    The promise is for data that are drawn like those of the fit, averaged over such draws, and for entries with a
    variance above zero. q is a quantile of |error|/σ. Entries of one structure are not independent: the quantile is
    taken as [L23] say, for a random entry of a new structure, each structure of the fit having the same weight. As a
    calibration of variances it makes mean ± σ hold 68.27 %.
    """

    kind: Literal["conformal"] = "conformal"
    coverages: tuple[float, ...] = Field(min_length=1, description="shares of observations, rising")
    widths: tuple[NonNegativeFloat, ...] = Field(description="half-widths of the intervals in predicted σ")

    @classmethod
    def fit(
        cls, variance: ArrayLike, error: ArrayLike, structure: Int[np.ndarray, " n"] | None = None
    ) -> "ConformalCalibration":
        """Quantiles of |error|/σ.

        Args:
            variance: predicted.
            error: observed, in the same order.
            structure: the number of the structure of each entry; None where each is one of its own.
        """
        spread, squares = fittable(variance, error)
        usable = np.asarray(variance, float).ravel() > 0
        owner = np.arange(len(spread)) if structure is None else np.asarray(structure).ravel()[usable]
        _, index, entries = np.unique(owner, return_inverse=True, return_counts=True)
        scores = np.sqrt(squares / spread)
        order = np.argsort(scores)
        below = np.cumsum(1.0 / entries[index[order]]) / (len(entries) + 1)
        kept = [c for c in sorted(COVERAGES) if c <= below[-1] * (1 + 1e-12)]
        if ONE_SIGMA not in kept:
            raise HuefieldError(f"{len(entries)} structures are too few to promise anything: it takes at least 3")
        rows = np.searchsorted(below * (1 + 1e-12), kept)
        found = cls(coverages=tuple(kept), widths=tuple(scores[order][rows].tolist()))
        if not found.width(ONE_SIGMA):
            raise HuefieldError("most errors are exactly zero: there is no width for intervals")
        return found

    def calibrated_var(self, variance: Any, xp: ModuleType) -> Any:
        """Variances whose root is the half-width of an interval that holds 68.27 %."""
        return self.width(ONE_SIGMA) ** 2 * variance

    def width(self, coverage: float) -> float:
        """Half-width, in predicted σ, of an interval that holds at least this share of observations."""
        enough = [width for kept, width in zip(self.coverages, self.widths, strict=True) if kept >= coverage]
        if not enough or coverage <= 0:
            raise HuefieldError(
                f"an interval can be promised to hold up to {self.coverages[-1]:.4g} of all observations, not "
                f"{coverage:g}: that takes more structures to fit to"
            )
        return enough[0]

    def half_width(self, variance: ArrayLike, coverage: float) -> Float[np.ndarray, "*n"]:
        """Half-widths of intervals around predicted means, from predicted variances."""
        return self.width(coverage) * np.sqrt(np.asarray(variance, float))


class GammaCalibration(FrozenConfig):
    """γ times one factor, the parameter that "can be adjusted post-hoc" ([J23] arXiv:2312.04174v1).

    Of the force variance γρ² + (∂ρ/∂r)² + (members' spread), only the first part changes, and energies do not: forces
    stay the derivatives of energies.
    """

    kind: Literal["gamma"] = "gamma"
    factor: PositiveFloat = Field(description="of γ")
    remark: str = Field("", description="what to know about the fit")

    @classmethod
    def fit(cls, gamma_var: ArrayLike, other_var: ArrayLike, error: ArrayLike) -> "GammaCalibration":
        """The factor of highest likelihood.

        Args:
            gamma_var: the part of force variances that is proportional to γ.
            other_var: the rest of them.
            error: observed errors of forces.
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
    """Variances and squared errors, in one row, without those whose variance is zero."""
    spread, errors = np.asarray(variance, float).ravel(), np.asarray(error, float).ravel()
    require_shape("error", errors, spread.shape)
    require_finite("variance", spread)
    require_non_negative("variance", spread)
    require_finite("error", errors)
    usable = spread > 0
    if usable.sum() < FEWEST:
        raise HuefieldError(
            f"{usable.sum()} errors with a predicted variance above zero are too few to calibrate with: it takes at "
            f"least {FEWEST} ({len(spread)} were given)"
        )
    if not errors[usable].any():
        raise HuefieldError("all errors are exactly zero: predictions seem to be compared with themselves")
    return spread[usable], errors[usable] ** 2


def _by_variance(spread: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct variances, rising, with the sum of squared errors and the number of entries of each."""
    distinct, index, counts = np.unique(spread, return_inverse=True, return_counts=True)
    return distinct, np.bincount(index, weights=squares), counts.astype(float)


def _grouped(
    distinct: np.ndarray, sums: np.ndarray, counts: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean variance, mean squared error and size of groups of about ``size`` entries; equal variances stay together."""
    last = max(int(counts.sum() // size) - 1, 0)
    group = np.minimum((np.cumsum(counts) - counts) // size, last).astype(np.int64)
    weights = np.bincount(group, weights=counts)
    full = weights > 0
    means = [np.bincount(group, weights=total)[full] / weights[full] for total in (distinct * counts, sums)]
    return means[0], means[1], weights[full]


def _regression(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots of the isotonic regression of y on x: the ends of each flat piece. Pieces of zero take the next value."""
    fitted = isotonic_regression(y, weights=weights).x
    fitted = np.maximum(fitted, fitted[fitted > 0].min())
    inside = np.zeros(len(x), bool)
    inside[1:-1] = (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:])
    return x[~inside], fitted[~inside]
