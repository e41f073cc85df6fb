"""The packed store: many structures in memory-mapped columns with checksums."""

from huefield.data.store.store import Store as Store
from huefield.data.store.writer import StoreWriter as StoreWriter
