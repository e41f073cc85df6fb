"""Demonstration: GFN2-xTB corrected to DFT, with error bars that are checked on reactions it was not trained on."""

from huefield.demo.job import Demo as Demo
from huefield.demo.job import run_demo as run_demo
