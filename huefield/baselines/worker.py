"""A process that computes a built-in baseline: ``python -m huefield.baselines.worker CONFIG`` (JSON)."""

import os
import sys

from huefield.baselines.process import serve
from huefield.baselines.tblite import TbliteBaseline


def main() -> None:
    """Answer requests on standard input; what programs print goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)
        baseline = TbliteBaseline(TbliteBaseline.Config.model_validate_json(sys.argv[1]))
        serve(baseline.compute, sys.stdin, replies.write)


if __name__ == "__main__":
    main()
