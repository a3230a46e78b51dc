"""Where results go: standard output, one file or a folder; decided and checked before the long work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OptionError, OutputError
from ..outputs.files import check_writable, write_text
from ._formats import Format
from ._output import write_stdout


@dataclass
class Destination:
    """Takes the text of each recording in each format, and puts it where it belongs.

    `path` None means standard output. A folder gets one file per recording and format, as soon as the recording is
    done; a single file gets the texts of all recordings, in one piece, from `close`.
    """

    path: Path | None
    is_folder: bool
    _texts: list[str] = field(default_factory=list)

    def put(self, stem: str, form: Format, text: str) -> None:
        """Write the text of the recording named `stem`, or keep it for the single file.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        if self.path is None:
            write_stdout(text)
        elif self.is_folder:
            write_text(self.path / f"{stem}{form.suffix}", text)
        else:
            self._texts.append(text)

    def close(self) -> None:
        """Write the single file, unless every recording failed.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        if self.path is not None and not self.is_folder and self._texts:
            write_text(self.path, "".join(self._texts))


def destination(
    output: str, audio: Sequence[str], stems: Sequence[str], formats: Sequence[Format], force: bool
) -> Destination:
    """The destination that `-o` means for these recordings and formats, after checking that it can be written.

    Raises
    ------
    OptionError
        It contradicts the number of formats or recordings, or is one of the recordings.
    OutputError
        It cannot be written, or a result exists and `force` is False.
    """
    if output == "-":
        return Destination(None, is_folder=False)
    if not output:
        raise OptionError("--output is empty; give a file, a folder, or - for standard output")
    path = Path(output)
    several = len(formats) > 1 or (len(audio) > 1 and not path.suffix)
    if path.is_dir() or output.endswith(os.sep) or (several and not path.exists()):
        files = [path / f"{stem}{form.suffix}" for stem in stems for form in formats]
        _make_folder(path)
        target = Destination(path, is_folder=True)
    else:
        if len(formats) > 1:
            raise OptionError(f"-o {output} is a file, but {len(formats)} formats are asked for; name a folder")
        if len(audio) > 1 and formats[0].name == "json":
            raise OptionError(f"-o {output} is a file, but json needs one for each recording; name a folder")
        files = [path]
        target = Destination(path, is_folder=False)
    _refuse_recordings(files, audio)
    for file in files:
        if file.is_file() and not force:
            raise OutputError(f"{file} exists already; --force replaces it")
        check_writable(file)
    return target


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {path}: {error.strerror}") from error


def _refuse_recordings(files: Sequence[Path], audio: Sequence[str]) -> None:
    recordings = {os.path.realpath(path) for path in audio}
    for file in files:
        if os.path.realpath(file) in recordings:
            raise OptionError(f"the result {file} would replace the recording itself; choose another --output")
