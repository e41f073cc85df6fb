"""Workers, each a process of its own, and what else the machine did meanwhile."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from environments import SCHNETPACK, Peer, PeerUnavailableError, variables


def worked(command: list[str], malloc: str, jax_cache: Path) -> tuple[dict[str, Any], float]:
    """Start a worker; its last line as an object, and how many cores other work kept busy meanwhile.

    Args:
        command: interpreter, script and arguments.
        malloc: a key of ``environments.MALLOC``.
        jax_cache: where compiled programs are kept.
    """
    begin, all_before, own_before = time.perf_counter(), busy_seconds(), children_seconds()
    done = subprocess.run(command, capture_output=True, text=True, env=variables(malloc, jax_cache))
    if done.returncode:
        sys.exit(f"{' '.join([Path(command[1]).name, *command[2:]])} failed:\n{done.stderr}")
    wall = time.perf_counter() - begin
    elsewhere = (busy_seconds() - all_before - (children_seconds() - own_before)) / wall
    return json.loads(done.stdout.splitlines()[-1]), max(0.0, elsewhere)


def busy_seconds() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    user, nice, system = (int(field) for field in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    """Seconds that finished workers have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peer_or_none(peer: Peer = SCHNETPACK) -> Path | None:
    """The other library's interpreter, or None, with a word on why."""
    try:
        return peer.python()
    except PeerUnavailableError as error:
        print(f"{peer.name} is left out, and only huefield is timed: {error}", file=sys.stderr)
        return None


def machine() -> dict[str, Any]:
    """The machine that the figures were measured on."""
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {"processor": next(iter(models), platform.machine()), "python": platform.python_version()}
