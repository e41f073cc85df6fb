"""Assigning whole groups of structures to parts whose sizes are as close to their targets as groups allow.

Shapes: G groups, P parts.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int64


def deal_groups(sizes: Int[np.ndarray, " G"], targets: Float[np.ndarray, " P"]) -> Int64[np.ndarray, " G"]:
    """The part of each group, −1 for none.

    Small parts are filled first; if the targets add up to all structures, the last part takes the rest.

    Args:
        sizes: number of structures in each group; groups are tried in this order.
        targets: number of structures wanted in each part.
    """
    owners = np.full(len(sizes), -1, np.int64)
    everything = targets.sum() > sizes.sum() * (1 - 1e-9)
    for later, part in zip(range(len(targets))[::-1], np.argsort(targets, kind="stable"), strict=True):
        free = np.flatnonzero(owners < 0)
        rest = everything and not later
        owners[free if rest else free[_fill(sizes[free], targets[part], len(free) - later)]] = part
    return owners


def _fill(sizes: Int[np.ndarray, " G"], target: float, at_most: int) -> Bool[np.ndarray, " G"]:
    """A selection of 1 to ``at_most`` groups with about ``target`` structures in total."""
    chosen, short = np.zeros(len(sizes), bool), target
    for index, size in enumerate(sizes.tolist()):
        if size <= short:
            chosen[index], short = True, short - size
    chosen[np.flatnonzero(chosen)[at_most:]] = False
    chosen[sizes.argmin()] |= not chosen.any()
    while (changed := _best_exchange(sizes, chosen, target - sizes[chosen].sum(), at_most)).size:
        chosen[changed] ^= True
    return chosen


def _best_exchange(
    sizes: Int[np.ndarray, " G"], chosen: Bool[np.ndarray, " G"], short: float, at_most: int
) -> Int64[np.ndarray, " _"]:
    """The group to add or remove, or the two to exchange, that reduces ``short`` most; none if nothing helps."""
    inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    coming = outside[np.argsort(sizes[outside], kind="stable")]
    leaving = np.append(inside, -1) if len(inside) < at_most else inside
    coming = np.insert(coming, 0, -1) if len(inside) > 1 else coming
    if not len(coming):
        return coming
    sizes = np.append(sizes, 0)  # index −1 is no group
    wanted = short + sizes[leaving]
    above = np.searchsorted(sizes[coming], wanted).clip(max=len(coming) - 1)
    candidates = coming[np.stack([above, (above - 1).clip(min=0)])]
    missed = np.abs(wanted - sizes[candidates])
    side, best = np.unravel_index(missed.argmin(), missed.shape)
    changed = np.array([leaving[best], candidates[side, best]])
    return changed[(changed >= 0) & (missed[side, best] < abs(short) - 1e-9)]
