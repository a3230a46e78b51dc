"""HTML: one page to look at, listen to and correct a result, which uses no network and needs nothing beside it.

The page shows the waveform, a lane for each speaker and the overlap, plays turns, renames speakers, and saves RTTM, CSV
and JSON. Short recordings lie in the page itself; others are played from their place beside it.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..errors import AudioError
from ..types import Diarization
from .json import format_json
from .peaks import Peaks

EMBED_LIMIT_BYTES = 8 * 2**20
"""Recordings up to this size are put into the page unless the caller decides."""

_FOLDER = Path(__file__).resolve().parent / "viewer"
_SCRIPTS = ("model.js", "export.js", "draw.js", "player.js", "main.js")
_MIME = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".m4a": "audio/mp4",
    ".mp4": "video/mp4",
    ".aac": "audio/aac",
    ".webm": "video/webm",
}


@dataclass(frozen=True)
class PageAudio:
    """What the page plays: `src` as the browser takes it ("" for nothing), `name` to show, and whether it is inside."""

    src: str
    name: str
    embedded: bool


NO_AUDIO = PageAudio("", "", False)
"""For a page that plays nothing until the user chooses a file."""


def page_audio(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] = "", embed: bool | None = None
) -> PageAudio:
    """The recording at `path` as a page in `folder` plays it: inside the page, or by its relative path.

    `embed` None puts recordings up to `EMBED_LIMIT_BYTES` into the page.

    Raises
    ------
    AudioError
        The recording is to be in the page and cannot be read.
    """
    name = os.path.basename(os.fspath(path))
    shown = os.fsencode(name).decode("utf-8", "replace")
    try:
        if embed or (embed is None and os.path.getsize(path) <= EMBED_LIMIT_BYTES):
            with open(path, "rb") as file:
                data = base64.b64encode(file.read()).decode("ascii")
            mime = _MIME.get(Path(name).suffix.lower(), "audio/wav")
            return PageAudio(f"data:{mime};base64,{data}", shown, True)
        relative = os.path.relpath(path, folder or os.curdir)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AudioError(f"{shown}: cannot be put into the page ({reason}); check the path") from error
    # A first part with a colon would be taken for the scheme of an address.
    return PageAudio("./" + quote(os.fsencode(relative)), shown, False)


def format_html(
    result: Diarization, file_id: str, audio: PageAudio, peaks: Peaks | None = None, exclusive: bool = False
) -> str:
    """The page; `exclusive` says which turns it shows at first, `peaks` None leaves the waveform out.

    Raises
    ------
    FormatError
        A time is not a finite number.
    """
    values = b"" if peaks is None else peaks.values.tobytes()
    data = {
        "document": json.loads(format_json(result, file_id)),
        "exclusive": exclusive,
        "peaks": {
            "values": base64.b64encode(values).decode("ascii"),
            "seconds": 1.0 if peaks is None else peaks.seconds,
        },
        "audio": {"src": audio.src, "name": audio.name, "embedded": audio.embedded},
    }
    parts = {
        "TITLE": html.escape(data["document"]["file"]),
        "STYLE": _read("viewer.css"),
        "SCRIPT": "\n".join(_read(name) for name in _SCRIPTS),
        # Nothing within a script element may look like a tag.
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub("@([A-Z]+)@", lambda match: parts[match[1]], _read("page.html"))


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8").rstrip("\n")
