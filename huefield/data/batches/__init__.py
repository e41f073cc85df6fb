"""Padded batches of few shapes, with their neighbour matrices."""

from huefield.data.batches.batching import Batch as Batch
from huefield.data.batches.batching import BatchOrder as BatchOrder
from huefield.data.batches.batching import make_batch as make_batch
from huefield.data.batches.batching import prefetch as prefetch
