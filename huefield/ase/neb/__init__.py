"""Reaction paths by nudged elastic bands, with error bars on barriers and reaction energies."""

from huefield.ase.neb.files import find_and_save_path as find_and_save_path
from huefield.ase.neb.files import save_path as save_path
from huefield.ase.neb.path import ReactionPath as ReactionPath
from huefield.ase.neb.search import PathConfig as PathConfig
from huefield.ase.neb.search import PathReport as PathReport
from huefield.ase.neb.search import PathStoppedError as PathStoppedError
from huefield.ase.neb.search import find_path as find_path
