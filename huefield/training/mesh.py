"""Devices in a grid: members along one axis, the structures of a batch along the other.

Arrays are sharded by JAX over the devices of one or many processes. A process of a job on many hosts
(``jax.distributed``) makes the batches of its own devices only.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pydantic import Field

from huefield.support.config import FrozenConfig
from huefield.support.errors import HuefieldError
from huefield.support.trees import is_array_like

MEMBER, DATA = "member", "data"
STATES, BATCHES, SHARED = PartitionSpec(MEMBER), PartitionSpec(MEMBER, DATA), PartitionSpec(None, DATA)
"""Layouts of arrays: states of members, batches of each member, and batches that all members share."""
KEPT_PROGRAMS = 32
"""Compiled programs that a process keeps for the next run with the same settings."""
Tree = TypeVar("Tree")


class MeshConfig(FrozenConfig):
    """Numbers of devices along the axes of the mesh."""

    member: int | None = Field(
        None, ge=1, le=10**6, description="devices along the members; null for the largest number that divides them"
    )
    data: int | None = Field(
        None, ge=1, le=10**6, description="devices along the structures of a batch; null for all others"
    )


class Layout:
    """A grid of devices, and transfers of arrays to it and back."""

    def __init__(self, num_members: int, config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> None:
        found = list(jax.devices() if devices is None else devices)
        member, data = grid(num_members, len(found), config)
        require_work_for_all([device.process_index for device in found], member * data)
        self.mesh = Mesh(np.array(found[: member * data]).reshape(member, data), (MEMBER, DATA))
        self.num_members, self.data_parts = num_members, data
        self.states, self.batches, self.shared = STATES, BATCHES, SHARED
        self.several_processes = jax.process_count() > 1
        self._gather = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

    def put(self, tree: Any, spec: PartitionSpec) -> Any:
        """Whole arrays, laid out over the devices; every process must have or be able to gather them."""
        arrays, static = eqx.partition(self.fetch(tree), is_array_like)

        def spread(array: Any) -> jax.Array:
            values = np.asarray(array)
            return jax.make_array_from_callback(values.shape, NamedSharding(self.mesh, spec), lambda i: values[i])

        return eqx.combine(jax.tree.map(spread, arrays), static)

    def cells(self, spec: PartitionSpec) -> list[tuple[int, int]]:
        """Indices (member, part) of arrays with this layout that devices of this process hold."""
        shape = (self.num_members if spec == self.batches else 1, self.data_parts)
        held = NamedSharding(self.mesh, spec).addressable_devices_indices_map(shape)
        return sorted(
            {(m, d) for index in held.values() for m in _range(index, 0, shape) for d in _range(index, 1, shape)}
        )

    def stack(self, parts: dict[tuple[int, int], Tree], spec: PartitionSpec) -> Tree:
        """Trees by the indices of :meth:`cells` as one tree of arrays with two more axes, member and part."""
        shape = (self.num_members if spec == self.batches else 1, self.data_parts)
        sharding = NamedSharding(self.mesh, spec)
        places, trees = list(parts), list(parts.values())

        def joined(*leaves: Any) -> jax.Array:
            values = {place: np.asarray(leaf) for place, leaf in zip(places, leaves, strict=True)}

            def piece(index: Any) -> np.ndarray:
                rows = [[values[m, d] for d in _range(index, 1, shape)] for m in _range(index, 0, shape)]
                return np.array(rows)[(..., *index[2:])]

            return jax.make_array_from_callback((*shape, *np.shape(leaves[0])), sharding, piece)

        return jax.tree.map(joined, *trees)

    def fetch(self, tree: Any) -> Any:
        """The whole arrays in the memory of every process."""
        arrays, static = eqx.partition(tree, eqx.is_array)
        far, near = eqx.partition(arrays, _is_elsewhere)
        gathered = self._gather(far) if jax.tree.leaves(far) else far
        return eqx.combine(*jax.tree.map(np.asarray, (gathered, near)), static)

    def on_device(self, tree: Any) -> Any:
        """The whole arrays as arrays of JAX on the default device."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, self.fetch(tree))

    def same_everywhere(self, number: int) -> bool:
        """Whether all processes have the same number; waits for all of them."""
        return not self.several_processes or len(np.unique(multihost_utils.process_allgather(np.array(number)))) == 1

    def agreed(self, wanted: bool) -> bool:
        """Logical OR over all processes (collective)."""
        return bool(np.any(multihost_utils.process_allgather(np.array(wanted)))) if self.several_processes else wanted


def compiled(
    function: Callable[..., Any], mesh: Mesh, given: tuple[PartitionSpec, ...], donated: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Compile a function of each device's part of the arguments; its results have the leading axis of members."""
    local = jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=STATES, check_vma=False)
    # Without out_shardings, XLA may lay out a result differently than the argument it becomes: compiled twice.
    return jax.jit(local, donate_argnums=donated, out_shardings=NamedSharding(mesh, STATES))


def grid(num_members: int, num_devices: int, config: MeshConfig) -> tuple[int, int]:
    """Numbers of devices along members, the largest that divides them, and along data."""
    member = config.member or math.gcd(num_members, num_devices // (config.data or 1) or 1)
    data = config.data or max(num_devices // member, 1)
    if num_members % member:
        raise HuefieldError(
            f"{num_members} members cannot be divided among {member} devices: set mesh.member to a divisor"
        )
    if member * data > num_devices:
        raise HuefieldError(f"the mesh of {member} × {data} needs {member * data} devices, but there are {num_devices}")
    return member, data


def require_work_for_all(processes: Sequence[int], num_used: int) -> None:
    """Raise if a process of a job has none of the devices that are used, which are the first ones.

    Args:
        processes: the process of each device.
        num_used: number of devices that are used.
    """
    idle = set(processes) - set(processes[:num_used])
    if idle:
        raise HuefieldError(
            f"the mesh has only {num_used} of {len(processes)} devices, and {len(idle)} processes have none of them: "
            "start fewer processes, or change mesh.member and mesh.data"
        )


def own_share(count: int) -> range:
    """The share of this process in ``count`` items that all processes work on together."""
    size = -(-count // jax.process_count())
    first = min(jax.process_index() * size, count)
    return range(first, min(first + size, count))


def shared(own: np.ndarray, count: int) -> np.ndarray:
    """Results of all processes for their :func:`own_share`, in order and bit for bit, in any precision of JAX."""
    processes = jax.process_count()
    if processes == 1 or not count:
        return own
    padded = np.zeros(-(-count // processes), own.dtype)
    padded[: len(own)] = own
    found = np.asarray(multihost_utils.process_allgather(padded.view(np.uint8), tiled=True))
    return found.view(own.dtype)[:count]


def first_process() -> bool:
    """Whether this is the process that writes files."""
    return jax.process_index() == 0


def _is_elsewhere(leaf: Any) -> bool:
    """Whether other processes hold parts of an array, too."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _range(index: Any, axis: int, shape: tuple[int, int]) -> range:
    return range(*index[axis].indices(shape[axis]))
