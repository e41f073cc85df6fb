"""The history of a run: one line of JSON for each event."""

import json
from pathlib import Path
from typing import Any

from huefield.support.errors import HuefieldError
from huefield.support.files import read_text
from huefield.support.plain import plain


class History:
    """Writes ``history.jsonl``. A resumed run overwrites the events after its checkpoint."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._file = path.open("r+b")
        kept = self._file.read(keep_bytes)
        self._file.truncate(kept.rfind(b"\n") + 1)  # a crash may have cut a line
        self._file.seek(0, 2)

    def write(self, event: str, **values: Any) -> None:
        """Append an event."""
        line = json.dumps({"event": event, **plain(values)}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    @property
    def num_bytes(self) -> int:
        """Length of the file in bytes."""
        return self._file.tell()

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_history(path: Path) -> list[dict[str, Any]]:
    """All events of a run, in order, without an incomplete last line."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no history at {path}: is this the folder of a run?")
    lines = read_text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    return [_event(line, f"line {number} of {path}") for number, line in enumerate(lines, 1)]


def _event(line: str, place: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or "event" not in event:
        raise HuefieldError(f"{place} is damaged: it is not an event of a run. Restore the file, or remove the line")
    return event
