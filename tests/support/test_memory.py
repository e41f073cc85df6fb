import os
import platform
import subprocess
import sys

import pytest

from huefield.support.memory import keep_freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from huefield.support.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


def page_faults(how: str) -> int:
    """Those of ten large arrays, after ten others."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    small_pages = {**inherited, "NUMPY_MADVISE_HUGEPAGE": "0"}
    program = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(program, capture_output=True, text=True, check=True, env=small_pages).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    left, kept = page_faults("leave"), page_faults("keep")
    assert left > 100
    assert kept < left / 10


def test_nothing_happens_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert not keep_freed_memory()
