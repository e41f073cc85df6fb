"""Reaction paths whose barriers have error bars."""

from huefield.ase.neb.path import find_path as find_path
