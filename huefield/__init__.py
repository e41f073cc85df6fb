"""Machine-learned force fields that know how wrong they are.

Importing huefield costs nothing: each public name is imported when it is first used, so that the
command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huefield.ase.calculator import Calculator as Calculator
    from huefield.evaluation.calibrate import calibrate as calibrate
    from huefield.evaluation.evaluate import evaluate as evaluate
    from huefield.model.ensemble import Ensemble as Ensemble
    from huefield.model.forcefield import ForceField as ForceField
    from huefield.model.modelfile import load as load
    from huefield.model.modelfile import save as save
    from huefield.support.errors import HuefieldError as HuefieldError
    from huefield.training import train as train

__version__ = "0.1.0.dev0"

_HOME = {
    "Calculator": "huefield.ase.calculator",
    "Ensemble": "huefield.model",
    "ForceField": "huefield.model",
    "HuefieldError": "huefield.support.errors",
    "calibrate": "huefield.evaluation.calibrate",
    "evaluate": "huefield.evaluation.evaluate",
    "load": "huefield.model",
    "save": "huefield.model",
    "train": "huefield.training",
}
_PACKAGES = (
    "ase",
    "core",
    "data",
    "evaluation",
    "model",
    "noise",
    "potentials",
    "predict",
    "reproduce",
    "testing",
    "training",
)

__all__ = [
    "Calculator",
    "Ensemble",
    "ForceField",
    "HuefieldError",
    "__version__",
    "calibrate",
    "evaluate",
    "load",
    "save",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"huefield.{name}")
    raise AttributeError(f"module 'huefield' has no attribute {name!r}; it has {sorted([*_HOME, *_PACKAGES])}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
