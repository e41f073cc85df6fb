"""Readers: files of many formats to blocks of structures in eV and Å."""

from huefield.data.readers.base import BadFrameError as BadFrameError
from huefield.data.readers.base import Fault as Fault
from huefield.data.readers.base import LeftOut as LeftOut
from huefield.data.readers.base import Remark as Remark
from huefield.data.readers.base import UnknownUnitsError as UnknownUnitsError
from huefield.data.readers.base import UnreadableFileError as UnreadableFileError
from huefield.data.readers.detect import ReaderConfig as ReaderConfig
from huefield.data.readers.detect import detect as detect
from huefield.data.readers.detect import read as read
from huefield.data.readers.detect import read_atoms as read_atoms
from huefield.data.readers.detect import read_blocks as read_blocks
