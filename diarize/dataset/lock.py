"""The lock file of a pulled data set: which bytes were seen first, and which files they became.

Schema history
--------------
diarize-lock/1: dataset, downloads, files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import DatasetError
from ..outputs.files import write_text

SCHEMA = "diarize-lock/1"
FILE = "lock.json"


@dataclass
class LockedDownload:
    """What an address gave first: its `size` in bytes, `sha256`, and the day. `unpacked`: file ids taken, or all."""

    size: int
    sha256: str
    first_seen: str
    unpacked: list[str] | None = None
    all_unpacked: bool = False


@dataclass
class LockedFile:
    """A file of the data set: `size` in bytes and `sha256`."""

    size: int
    sha256: str


@dataclass
class Lock:
    """What is known of one folder: downloads by address, files by path relative to it."""

    dataset: str
    downloads: dict[str, LockedDownload] = field(default_factory=dict)
    files: dict[str, LockedFile] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """Write the lock file in `root`.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        document = {
            "schema": SCHEMA,
            "dataset": self.dataset,
            "downloads": {url: asdict(item) for url, item in sorted(self.downloads.items())},
            "files": {path: asdict(item) for path, item in sorted(self.files.items())},
        }
        write_text(root / FILE, json.dumps(document, indent=1) + "\n")


def read_lock(root: Path, dataset: str) -> Lock:
    """The lock of the folder `root`, empty where there is none.

    Raises
    ------
    DatasetError
        It is damaged, or the folder holds another data set.
    """
    path = root / FILE
    if not path.exists():
        return Lock(dataset)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, allowed is {SCHEMA!r}")
        lock = Lock(
            str(document["dataset"]),
            {url: LockedDownload(**item) for url, item in document["downloads"].items()},
            {name: LockedFile(**item) for name, item in document["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is damaged ({error}); delete it and pull again") from error
    if lock.dataset != dataset:
        raise DatasetError(f"{root} holds the data set {lock.dataset}, not {dataset}; choose another folder with --to")
    return lock
