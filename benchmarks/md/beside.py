"""Import this first: it puts the modules of benchmarks/painn within reach, most of which serve here too."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "painn"))
