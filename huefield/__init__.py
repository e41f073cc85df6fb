"""Machine-learned force fields that know how wrong they are.

Importing huefield costs nothing: each public name is imported when it is first used, so that the
command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huefield.apps.calculator import Calculator as Calculator
    from huefield.apps.evaluate import evaluate as evaluate
    from huefield.forcefield import Ensemble as Ensemble
    from huefield.forcefield import ForceField as ForceField
    from huefield.modelfile import load as load
    from huefield.modelfile import save as save
    from huefield.training import train as train

__version__ = "0.1.0.dev0"

_HOME = {
    "Calculator": "huefield.apps.calculator",
    "Ensemble": "huefield.forcefield",
    "ForceField": "huefield.forcefield",
    "evaluate": "huefield.apps.evaluate",
    "load": "huefield.modelfile",
    "save": "huefield.modelfile",
    "train": "huefield.training",
}
_PACKAGES = ("core", "data", "evaluation", "noise", "potentials", "testing", "training")

__all__ = ["Calculator", "Ensemble", "ForceField", "__version__", "evaluate", "load", "save", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"huefield.{name}")
    raise AttributeError(f"module 'huefield' has no attribute {name!r}; it has {sorted([*_HOME, *_PACKAGES])}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
