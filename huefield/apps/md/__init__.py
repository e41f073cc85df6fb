"""Molecular dynamics that watches its own uncertainty, keeps what it has done, and goes on from there."""

from huefield.apps.md.config import MDConfig as MDConfig
from huefield.apps.md.figure import draw_md as draw_md
from huefield.apps.md.run import MDProgress as MDProgress
from huefield.apps.md.run import MDResult as MDResult
from huefield.apps.md.run import run_md as run_md
