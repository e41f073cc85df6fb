"""Data sets that come with huefield."""

from huefield.data.bundled.sets import bundled as bundled
from huefield.data.bundled.sets import load_bundled as load_bundled
