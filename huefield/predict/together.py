"""Several parts of the data, predicted together: the program is compiled once."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from huefield.core.structure import joined
from huefield.data.dataset import Part
from huefield.model.ensemble import Ensemble
from huefield.predict.batches import predict_part
from huefield.predict.predictions import Predictions
from huefield.support.errors import HuefieldError


@dataclass(frozen=True, eq=False)
class Together:
    """Parts of the data as one."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    part: Part

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> "Together":
        """Some parts by their names."""
        blocks = [part.block(np.arange(len(part))) for part in parts.values()]
        together = joined(blocks, "all parts")
        return cls(tuple(parts), tuple(map(len, blocks)), Part("all parts", together, np.arange(len(together))))

    def predicted(self, ensemble: Ensemble, name: str) -> dict[str, Predictions]:
        """Predictions of an ensemble for each part."""
        found = predict_part(ensemble, self.part, name)
        if found.left_out:
            raise HuefieldError(f"the model cannot predict all structures: {dict(found.left_out)}")
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return {part: found.select(owner == number) for number, part in enumerate(self.names)}
