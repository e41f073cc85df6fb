"""From files and processes to batches of structures with labels."""

from huefield.data.toy import ToyData as ToyData
from huefield.data.toy import ToyProcess as ToyProcess
