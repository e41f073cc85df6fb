"""From files and processes to batches of structures with labels."""

from huefield.data.base import BadFrameError as BadFrameError
from huefield.data.base import Fault as Fault
from huefield.data.base import LeftOut as LeftOut
from huefield.data.base import UnknownUnitsError as UnknownUnitsError
from huefield.data.base import UnreadableFileError as UnreadableFileError
from huefield.data.batching import Batch as Batch
from huefield.data.batching import BatchOrder as BatchOrder
from huefield.data.batching import make_batch as make_batch
from huefield.data.batching import prefetch as prefetch
from huefield.data.reading import ReaderConfig as ReaderConfig
from huefield.data.reading import detect as detect
from huefield.data.reading import read as read
from huefield.data.reading import read_blocks as read_blocks
from huefield.data.references import AtomicReferences as AtomicReferences
from huefield.data.references import ReferenceConfig as ReferenceConfig
from huefield.data.split_config import SplitConfig as SplitConfig
from huefield.data.split_config import SplitInputs as SplitInputs
from huefield.data.split_files import split_from_file as split_from_file
from huefield.data.splits import Split as Split
from huefield.data.store import Store as Store
from huefield.data.store_writer import StoreWriter as StoreWriter
from huefield.data.toy import ToyData as ToyData
from huefield.data.toy import ToyProcess as ToyProcess
from huefield.data.toy import draw_toy as draw_toy
from huefield.data.toy import toy_graph as toy_graph
from huefield.data.toy import toy_labels as toy_labels
