"""The Python environments of the two sides, and their environment variables."""

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from measure import CORES

HERE = Path(__file__).parent
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
    """The other library could not be installed."""


@dataclass(frozen=True)
class Peer:
    """Another library, in an environment of its own with what it needs to be imported and no more."""

    name: str
    package: str
    version: str
    torch: str
    folder: Path
    """Where its environment is."""
    requirements: Path

    def python(self) -> Path:
        """Its interpreter; installs it first where it is missing."""
        python, ready = self.folder / "bin" / "python", self.folder / f".ready-{self.version}-{self.torch}"
        if not ready.exists():
            self._install(python)
            ready.touch()
        return python

    def _install(self, python: Path) -> None:
        print(f"setting up {self.name} {self.version} in {self.folder}", file=sys.stderr)
        venv.create(self.folder, clear=True, with_pip=True)
        packages = (
            [f"torch=={self.torch}"],
            ["-r", str(self.requirements)],
            ["--no-deps", f"{self.package}=={self.version}"],
        )
        for wanted in packages:
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
                raise PeerUnavailableError(f"pip could not install {' '.join(wanted)}: {reason}")


SCHNETPACK = Peer(
    name="SchNetPack",
    package="schnetpack",
    version="2.1.1",
    torch="2.13.0",
    folder=HERE.parents[1] / ".cache" / "bench-painn" / "venv",
    requirements=HERE / "peer-requirements.txt",
)


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
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # e3nn 0.4.4 loads its own constants in the old way
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(jax_cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **MALLOC[malloc],
    }
