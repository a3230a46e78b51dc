"""Where results go: standard output, one file, a folder or a template; decided and checked before the long work."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OptionError, OutputError
from ..outputs.files import check_writable, write_text
from ._formats import Format
from ._inputs import STDIN
from ._output import check_stdout, write_stdout

FIELDS = ("{parent}", "{stem}", "{suffix}")
# A word in braces is meant as a field, also one that there is not.
_LIKE_FIELD = re.compile(r"(?<!\{)\{[a-z_]+\}")
_FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")


@dataclass
class Destination:
    """Takes the text of each recording in each format, and puts it where it belongs.

    `files` holds a file for each recording and format, written as soon as the recording is done. Without it the texts
    go to standard output, or in one piece, from `close`, to the single file `path`.
    """

    path: Path | None = None
    files: dict[tuple[str, str], Path] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _headers: set[str] = field(default_factory=set)

    def file_of(self, audio: str, form: Format) -> Path | None:
        """The file that the text of a recording in a format goes to; None for standard output."""
        return self.files.get((audio, form.name), self.path)

    def put(self, audio: str, form: Format, text: str) -> None:
        """Write the text of the recording `audio`, or keep it for the single file.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        if self.files:
            file = self.files[audio, form.name]
            write_text(file, text)
            return
        if form.name in self._headers:
            text = text.removeprefix(form.header)
        self._headers.add(form.name)
        if self.path is None:
            write_stdout(text)
        else:
            self._texts.append(text)

    def close(self) -> None:
        """Write the single file, unless every recording failed.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        if self.path is not None and self._texts:
            write_text(self.path, "".join(self._texts))


def destination(output: str, audio: Sequence[str], formats: Sequence[Format], force: bool) -> Destination:
    """The destination that `-o` means for these recordings and formats, after checking that it can be written.

    Raises
    ------
    OptionError
        It contradicts the number of formats or recordings, gives two recordings one file, or is one of the recordings.
    OutputError
        It cannot be written, or a result exists and `force` is False.
    """
    if output == "-":
        check_stdout()
        return Destination()
    if not output:
        raise OptionError("--output is empty; give a file, a folder, a template, or - for standard output")
    target = _target(output, audio, formats)
    files = list(target.files.values()) if target.path is None else [target.path]
    _refuse_recordings(files, audio)
    for file in files:
        if file.is_file() and not force:
            raise OutputError(f"{file} exists already; --force replaces it")
        if target.path is None:
            _make_folder(file.parent)
        check_writable(file)
    return target


def stem_of(audio: str) -> str:
    """The recording's name without folder and suffix; "stdin" for standard input."""
    return "stdin" if audio == STDIN else Path(audio).stem or "recording"


def told_apart(first: str, second: str, template: str = "") -> str:
    """What to do about two recordings whose results would have one name, also with the `template` that was given."""
    ways = {"{parent}": os.path.dirname(first) != os.path.dirname(second), "{stem}": stem_of(first) != stem_of(second)}
    useful = [name for name, differs in ways.items() if differs and name not in template]
    if useful:
        return f"rename one, run them apart, or give --output a template with {' or '.join(useful)}"
    return "rename one, or run them apart"


def has_fields(output: str) -> bool:
    """Whether `-o` is a template rather than a name."""
    return output != "-" and (any(name in output for name in FIELDS) or _LIKE_FIELD.search(output) is not None)


def _target(output: str, audio: Sequence[str], formats: Sequence[Format]) -> Destination:
    if has_fields(output):
        return Destination(files=_fill(output, audio, formats))
    path = Path(output)
    several = len(formats) > 1 or (len(audio) > 1 and not path.suffix)
    if path.is_dir() or output.endswith(os.sep) or (several and not path.exists()):
        _make_folder(path)
        return Destination(files={(a, f.name): path / f"{stem_of(a)}{f.suffix}" for a in audio for f in formats})
    if len(formats) > 1:
        raise OptionError(f"-o {output} is a file, but {len(formats)} formats are asked for; name a folder")
    if len(audio) > 1 and not formats[0].joins:
        raise OptionError(f"-o {output} is a file, but {formats[0].name} needs one for each recording; name a folder")
    return Destination(path)


def _fill(template: str, audio: Sequence[str], formats: Sequence[Format]) -> dict[tuple[str, str], Path]:
    """A file for each recording and format; raises `OptionError` where two of them get the same."""
    for found in _FIELD.findall(template):
        if found not in (*FIELDS, "{{", "}}"):
            raise OptionError(f"-o {template} holds {found}; allowed are {', '.join(FIELDS)}, and {{{{ for a brace")
    if template.endswith(os.sep):
        template += "{stem}"
    if "{suffix}" not in template:
        if not Path(template).suffix:
            template += "{suffix}"
        elif len(formats) > 1:
            raise OptionError(f"-o {template} names one suffix for {len(formats)} formats; use {{suffix}}")
    files: dict[tuple[str, str], Path] = {}
    owners: dict[str, str] = {}
    for path in audio:
        for form in formats:
            file = _filled(template, path, form)
            owner = owners.setdefault(os.path.realpath(file), path)
            if owner != path:
                advice = told_apart(owner, path, template)
                raise OptionError(f"-o {template} gives {owner} and {path} the same file {file}; {advice}")
            files[path, form.name] = file
    return files


def _filled(template: str, audio: str, form: Format) -> Path:
    values = {
        "{parent}": os.path.dirname(audio) or ".",
        "{stem}": stem_of(audio),
        "{suffix}": form.suffix,
        "{{": "{",
        "}}": "}",
    }
    return Path(_FIELD.sub(lambda match: values[match[0]], template))


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
