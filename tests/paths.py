"""Where tests find what is not theirs."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("HUEFIELD_DATA", ROOT.parent / "shared" / "data"))
"""Real data, which may be missing."""
