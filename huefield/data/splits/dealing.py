"""Whole groups of structures dealt out to parts, so that each part comes as near to its share as groups allow.

Shapes: G groups, P parts.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int64


def deal_groups(sizes: Int[np.ndarray, " G"], targets: Float[np.ndarray, " P"]) -> Int64[np.ndarray, " G"]:
    """Deal groups out whole: the part of each group, −1 for none.

    Small parts choose first; if the targets add to all there is, the last takes the rest.

    Args:
        sizes: structures of each of G groups, which are taken in this order.
        targets: structures that each of P parts should have.
    """
    owners = np.full(len(sizes), -1, np.int64)
    everything = targets.sum() > sizes.sum() * (1 - 1e-9)
    for later, part in zip(range(len(targets))[::-1], np.argsort(targets, kind="stable"), strict=True):
        free = np.flatnonzero(owners < 0)
        rest = everything and not later
        owners[free if rest else free[_fill(sizes[free], targets[part], len(free) - later)]] = part
    return owners


def _fill(sizes: Int[np.ndarray, " G"], target: float, at_most: int) -> Bool[np.ndarray, " G"]:
    """Groups that together have about ``target`` structures: one at least, ``at_most`` at most."""
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
    """The group to take in, to leave out, or the two to exchange, so that least is ``short``; none if nothing helps."""
    inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    coming = outside[np.argsort(sizes[outside], kind="stable")]
    leaving = np.append(inside, -1) if len(inside) < at_most else inside
    coming = np.insert(coming, 0, -1) if len(inside) > 1 else coming
    if not len(coming):
        return coming
    sizes = np.append(sizes, 0)  # index −1 stands for no group
    wanted = short + sizes[leaving]
    above = np.searchsorted(sizes[coming], wanted).clip(max=len(coming) - 1)
    candidates = coming[np.stack([above, (above - 1).clip(min=0)])]
    missed = np.abs(wanted - sizes[candidates])
    side, best = np.unravel_index(missed.argmin(), missed.shape)
    changed = np.array([leaving[best], candidates[side, best]])
    return changed[(changed >= 0) & (missed[side, best] < abs(short) - 1e-9)]
