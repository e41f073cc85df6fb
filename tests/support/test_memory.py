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


def page_faults(how):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_without_page_faults():
    assert page_faults("leave") > 1000
    assert page_faults("keep") < 100


def test_nothing_happens_on_other_systems(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
