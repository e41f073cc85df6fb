"""Whether the error bars of a model hold for structures of a given size."""

from huefield.model.ensemble import Ensemble


def size_remark(ensemble: Ensemble, atoms: int) -> str:
    """A warning if a model is not size-consistent and its validation data had no structure this large; else empty.

    Args:
        ensemble: the model.
        atoms: number of atoms of a structure.
    """
    noise, typical = ensemble.members.noise, ensemble.typical
    if noise.is_size_consistent:
        return ""
    known = None if typical is None else typical.most_atoms
    if known is not None and atoms <= known:
        return ""
    trained = "whose size at training is not known" if known is None else f"which was validated up to {known} atoms"
    return (
        f"error bars for {atoms} atoms may be far too small: the noise model {ensemble.noise_kind} of this model, "
        f"{trained}, lets them vanish as structures grow. Train with the noise model local, which does not"
    )
