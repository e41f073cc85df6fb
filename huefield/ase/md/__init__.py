"""Molecular dynamics that monitors its own uncertainty and can be interrupted and resumed."""

from huefield.ase.md.config import MDConfig as MDConfig
from huefield.ase.md.figure import draw_md as draw_md
from huefield.ase.md.run import MDProgress as MDProgress
from huefield.ase.md.run import MDResult as MDResult
from huefield.ase.md.run import run_md as run_md
