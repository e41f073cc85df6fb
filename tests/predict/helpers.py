"""Changes of predictions for tests."""

from dataclasses import replace

import numpy as np

from huefield.predict.marginals import Marginals
from huefield.predict.predictions import Predictions


def changed(predictions: Predictions, **marginals: Marginals | np.ndarray | None) -> Predictions:
    """The same with other marginals of some quantities, or without them."""
    return replace(predictions, marginals=replace(predictions.marginals, **marginals))  # type: ignore[arg-type]
