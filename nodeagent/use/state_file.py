"""The records of use in a file, so that they outlive the agent: `KeptRecords` as JSON."""

from pathlib import Path
from typing import Final

from msgspec import json

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.use.records import KeptRecords

FILE_NAME: Final = "use.json"
_MAX_BYTES = 8 << 20  # a digest takes 2 KiB with the longest names


def use_file(path: Path | None) -> StateFile[KeptRecords]:
    """The file; `path` None: nothing is kept."""
    decode = json.Decoder(KeptRecords).decode
    return StateFile(path, StateFormat("use", 1, _MAX_BYTES, json.encode, decode))
