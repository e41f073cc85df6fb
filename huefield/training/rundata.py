"""The data of a run that is there, to calibrate and test its model with."""

from pathlib import Path

from huefield.data.dataset import Part
from huefield.support.errors import HuefieldError
from huefield.training.config import parse_config
from huefield.training.job import CONFIG, changed_parts, inputs_folder


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run, of all members or of members that were trained one by one."""
    try:
        inputs_folder(path)
    except FileNotFoundError:
        return False
    return True


def part_of_run(path: Path, name: str) -> Part:
    """A part of the data that a run was made with, such as ``validation``.

    Args:
        path: folder of the run.
        name: of the part.
    """
    folder = inputs_folder(path)
    config = parse_config((folder / CONFIG).read_text(), str(folder / CONFIG), [])
    parts = config.data.load()
    if name not in parts:
        raise HuefieldError(f"the data of {path} have no part {name!r}, but {', '.join(parts)}: choose one with --part")
    for changed in changed_parts(parts, folder):
        raise HuefieldError(
            f"the {changed} data of {path} have changed since the run: what is for training and what for testing may "
            "be mixed up now. Name a file instead"
        )
    return parts[name]
