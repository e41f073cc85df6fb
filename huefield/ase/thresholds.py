"""Thresholds of the uncertainty: numbers, or shares of the validation data."""

from dataclasses import dataclass

from huefield.model.typical import Measure, PartOfUncertainty, TypicalUncertainty
from huefield.support.errors import HuefieldError

LARGEST = 20.0
"""Force uncertainty [eV/Å] above which a number is probably a share without its percent sign."""


class UncertaintyWarning(UserWarning):
    """A model is more uncertain about a structure than about data like its training data."""


@dataclass(frozen=True)
class Threshold:
    """A number in eV or eV/Å (``0.3``), or a share of the model's validation data (``99.9%``)."""

    value: float
    is_share: bool

    @classmethod
    def parse(cls, given: str | float) -> "Threshold":
        """Read ``0.3`` or ``"99.9%"``."""
        text = str(given).strip()
        is_share = text.endswith("%")
        try:
            value = float(text.removesuffix("%")) / (100 if is_share else 1)
        except ValueError:
            raise HuefieldError(
                f"a threshold is a number in eV/Å such as 0.3, or a share of the validation data such as 99.9%, not "
                f"{given!r}"
            ) from None
        if is_share and not 0 <= value <= 1:
            raise HuefieldError(f"a share of the data lies between 0% and 100%, but is {text}")
        if not value > 0:
            raise HuefieldError(f"a threshold must be above 0, but is {text}")
        return cls(value, is_share)

    @property
    def doubt(self) -> str:
        """A question to the user if the number looks like a share; else empty."""
        if self.is_share or not LARGEST < self.value <= 100:
            return ""
        return f"{self} eV/Å is far above any uncertainty of a useful model: did you mean {self}%?"

    def limit(self, typical: TypicalUncertainty | None, measure: Measure, part: PartOfUncertainty) -> float:
        """The threshold in eV or eV/Å, given the uncertainties of the validation data."""
        if not self.is_share:
            return self.value
        if typical is None:
            raise HuefieldError(
                f"the model does not know the uncertainties of its validation data, which a threshold of {self} needs: "
                "give a number in eV/Å, or run `huefield calibrate MODEL DATA`"
            )
        return typical.quantile(self.value, measure, part)

    def __str__(self) -> str:
        return f"{100 * self.value:.15g}%" if self.is_share else f"{self.value:.15g}"
