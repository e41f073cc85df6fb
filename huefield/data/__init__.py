"""From files and processes to batches of structures with labels."""

from huefield.data.toy import ToyData as ToyData
from huefield.data.toy import ToyProcess as ToyProcess
from huefield.data.toy import draw_toy as draw_toy
from huefield.data.toy import toy_graph as toy_graph
from huefield.data.toy import toy_labels as toy_labels
