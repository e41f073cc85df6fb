"""Structures from files that ASE reads, with clear messages about bad files."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from ase import Atoms

from huefield.data.readers.base import BadFrameError, Fault, UnreadableFileError, naming, require_elements
from huefield.data.readers.images import Image, ase_format_of, explained, images_in
from huefield.support.errors import HuefieldError

NAME_FORMAT = "give it a name that ends with its format, such as .xyz or .cif"


def read_structure(path: Path, frame: int | None = None) -> Atoms:
    """Read one frame of a file, without its calculator.

    Args:
        path: the file.
        frame: number of the frame, counted from 0; None for the last.
    """
    if frame is not None and frame < 0:
        raise HuefieldError(f"frames are counted from 0, but --frame is {frame}; leave it out for the last frame")
    with naming(path):
        images = _images(path)
        found = deque(images, 1) if frame is None else list(islice(images, frame, frame + 1))
    if not found:
        raise HuefieldError(
            f"{path} has no {'structure' if frame is None else f'frame {frame}; they are counted from 0'}"
        )
    return _atoms(found[0])


def read_structures(path: Path) -> list[Atoms]:
    """Read all frames of a file, without their calculators."""
    with naming(path):
        found = list(_images(path))
    if not found:
        raise HuefieldError(f"{path} has no structure")
    return [_atoms(image) for image in found]


@contextmanager
def naming_structure(name: str) -> Iterator[None]:
    """Prefix errors about a structure with its name."""
    try:
        yield
    except HuefieldError as error:
        raise HuefieldError(f"{name}: {error}") from error


def _images(path: Path) -> Iterator[Image | Fault]:
    if path.is_dir():
        raise UnreadableFileError(f"{path} is a folder: name a file with a structure")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    return images_in(path, ase_format_of(path, cure=NAME_FORMAT))


def _atoms(image: Image | Fault) -> Atoms:
    if isinstance(image, Fault):
        raise _unusable(image)
    try:
        atoms = image.parse()
        require_elements(atoms.numbers)
    except Exception as error:  # ASE raises anything on damaged text
        raise _unusable(Fault(image.source, image.frame, explained(error))) from error
    atoms.calc = None
    return atoms


def _unusable(fault: Fault) -> BadFrameError:
    return BadFrameError(f"{str(fault).rstrip('.')}: correct the file, or remove this frame")
