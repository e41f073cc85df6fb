"""Import this first: it puts the modules of benchmarks/painn within reach. Has the environment of mace-torch."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "painn"))

from environments import Peer  # noqa: E402

MACE_TORCH = Peer(
    name="mace-torch",
    package="mace-torch",
    version="0.3.16",
    torch="2.13.0",
    folder=HERE.parents[1] / ".cache" / "bench-mace" / "venv",
    requirements=HERE / "peer-requirements.txt",
)
