"""The Python environments of the two sides, and their environment variables."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from measure import CORES

HERE = Path(__file__).parent
PEER = HERE.parents[1] / ".cache" / "bench-painn" / "venv"
PEER_TORCH, PEER_VERSION = "2.13.0", "2.1.1"
MALLOC = {
    "default": {},
    "tuned": {
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
        "MALLOC_TOP_PAD_": "268435456",
    },
}
"""glibc's malloc as it is, and told to keep what it has: PyTorch asks for fresh memory all the time."""


class PeerUnavailableError(Exception):
    """SchNetPack could not be installed."""


def peer_python() -> Path:
    """The interpreter that has SchNetPack; installs it first where it is missing."""
    python, ready = PEER / "bin" / "python", PEER / f".ready-{PEER_VERSION}-{PEER_TORCH}"
    if not ready.exists():
        install_peer(python)
        ready.touch()
    return python


def install_peer(python: Path) -> None:
    """Put SchNetPack into an environment of its own, with what it needs to be imported and no more."""
    print(f"setting up SchNetPack {PEER_VERSION} in {PEER}", file=sys.stderr)
    venv.create(PEER, clear=True, with_pip=True)
    steps = (
        [f"torch=={PEER_TORCH}"],
        ["-r", str(HERE / "peer-requirements.txt")],
        ["--no-deps", f"schnetpack=={PEER_VERSION}"],
    )
    for wanted in steps:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise PeerUnavailableError(f"pip could not install {' '.join(wanted)}: {reason}")


def variables(malloc: str, jax_cache: Path) -> dict[str, str]:
    """The environment of a worker.

    Args:
        malloc: a key of ``MALLOC``.
        jax_cache: where compiled programs are kept.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "JAX_", "XLA_"))}
    return {
        **inherited,
        "OMP_NUM_THREADS": str(CORES),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(jax_cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **MALLOC[malloc],
    }
