"""`diarize datasets`: which data sets there are, fetching them, checking them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options
from ._output import FAILED, exit_codes, say, start_logging, write_stdout
from ._progress import LINE_INTERVAL_S, progress

if TYPE_CHECKING:
    from ..dataset.manifest import Download, Manifest
    from ..dataset.pull import DownloadSize

app = typer.Typer(
    name="datasets",
    help="List, fetch and check data sets for diarize bench.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[
    str, typer.Argument(metavar="NAME|MANIFEST", help="A name of diarize datasets list, or a manifest (.json).")
]
_SCHEMA = "diarize-datasets/1"


@app.command("list", short_help="Print every data set and whether it is here.")
def list_datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: _options.Verbose = 0,
) -> None:
    """Print every data set: name, files, hours, whether it is on this machine, licence."""
    with exit_codes(verbose):
        start_logging(verbose)
        from ..dataset.manifest import manifests

        found = manifests().values()
        if as_json:
            document = {"schema": _SCHEMA, "datasets": [_as_json(manifest) for manifest in found]}
            write_stdout(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
            return
        width = max(len(manifest.name) for manifest in found)
        lines = [f"{'':{width}}  files   hours  state        licence"]
        for manifest in found:
            hours = f"{manifest.hours:7.1f}" if manifest.hours else "      ?"
            files = f"{manifest.files:5}" if manifest.files else "    ?"
            lines.append(f"{manifest.name:{width}}  {files} {hours}  {_state(manifest):11}  {manifest.licence}")
        lines += [f"{alias} stands for {manifest.name}" for manifest in found for alias in manifest.aliases]
        write_stdout("\n".join(lines) + "\n")


@app.command("info", short_help="Print what a data set is and where it lies.")
def info(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: _options.Verbose = 0,
) -> None:
    """Print what a data set is: licence, source, protocol, published DER, and where it lies."""
    with exit_codes(verbose):
        start_logging(verbose)
        manifest = _manifest(name)
        if as_json:
            write_stdout(json.dumps({"schema": _SCHEMA, **_as_json(manifest)}, indent=2, ensure_ascii=False) + "\n")
        else:
            write_stdout(_as_text(manifest))


@app.command("pull", short_help="Fetch a data set, check and unpack it.")
def pull(
    name: Name,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for audio/, rttm/ and uem/. [default: datasets/NAME in the cache, see DIARIZE_CACHE]",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the first N file ids. An archive still comes whole."),
    ] = None,
    offline: _options.Offline = False,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Fetch a data set: says licence and size first, goes on where it stopped, checks and unpacks. What ships is there.

    lock.json in the folder keeps the sha256 of everything as it was first seen.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        from ..dataset.load import pull_folder
        from ..dataset.pull import download_size
        from ..dataset.pull import pull as fetch
        from ..offline import offline as is_offline

        manifest = _manifest(name)
        if manifest.ships and to is None:
            if verbosity >= 0:
                say(f"{manifest.name} ships with the package: there is nothing to fetch")
            return
        root = to or pull_folder(manifest)
        # Offline, either all is here already or the library says what is not.
        if verbosity >= 0 and manifest.downloads and not is_offline():
            say(f"{manifest.name}: {manifest.title}; licence: {manifest.licence}; {manifest.homepage}")
            say(f"fetching {_size(download_size(manifest, limit))} into {root}")
        with _progress(manifest.name, verbosity) as show:
            done = fetch(manifest, root, limit, show)
        if done.incomplete:
            missing = ", ".join(done.incomplete[:5])
            say(f"error: {len(done.incomplete)} file ids lack their audio or their reference: {missing}")
            raise typer.Exit(FAILED)
        if verbosity >= 0:
            say(f"{manifest.name}: {len(done.complete)} recordings with references in {root}")


@app.command("verify", short_help="Check every file of a pulled data set.")
def verify(
    name: Name,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder it was pulled to, where that is not the cache.")
    ] = None,
    verbose: _options.Verbose = 0,
) -> None:
    """Check every file of a pulled data set against lock.json; exit with 1 if one is missing or has changed."""
    with exit_codes(verbose):
        start_logging(verbose)
        from ..dataset.load import pull_folder
        from ..dataset.pull import verify as problems_of

        manifest = _manifest(name)
        if manifest.recordings:
            from ..dataset.load import load_dataset

            number = len(load_dataset(name).recordings)
            where = "ship with the package" if manifest.ships else f"lie in {manifest.folder}"
            write_stdout(f"{manifest.name}: {number} recordings {where}: all there\n")
            return
        problems = problems_of(to or pull_folder(manifest), manifest)
        for problem in problems:
            say(f"error: {problem}")
        if problems:
            raise typer.Exit(FAILED)
        write_stdout(f"{manifest.name}: ok\n")


@contextmanager
def _progress(name: str, verbosity: int) -> Iterator[Callable[[str, int, int | None], None]]:
    """Shows downloads: a bar on a terminal, a line every 15 s elsewhere, nothing when quiet."""
    if verbosity < 0:
        yield lambda file, have, total: None
    elif sys.stderr.isatty():
        with progress(name, verbosity) as bar:
            yield lambda file, have, total: bar(file, have, total)
    else:
        last = time.monotonic()

        def line(file: str, have: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_INTERVAL_S:
                last = time.monotonic()
                say(f"{name}: {file}, {have / 1e6:.0f}" + (f" of {total / 1e6:.0f} MB" if total else " MB"))

        yield line


def _manifest(name: str) -> Manifest:
    from ..dataset.manifest import find_manifest, read_manifest

    return read_manifest(Path(name)) if name.endswith(".json") else find_manifest(name)


def _state(manifest: Manifest) -> str:
    from ..dataset.load import pull_folder

    if manifest.recordings:
        return "in package" if manifest.ships else "here"
    if (pull_folder(manifest) / "audio").is_dir():
        return "here"
    return "by hand" if manifest.by_hand else "not pulled"


def _folders(manifest: Manifest) -> list[Path]:
    """Where the recordings lie or would lie."""
    from ..dataset.load import pull_folder

    own = {(manifest.folder / recording.audio).parent for recording in manifest.recordings}
    return sorted(own) or [pull_folder(manifest)]


def _as_json(manifest: Manifest) -> dict[str, object]:
    from ..dataset.load import pull_folder

    return {
        "name": manifest.name,
        "aliases": list(manifest.aliases),
        "title": manifest.title,
        "licence": manifest.licence,
        "homepage": manifest.homepage,
        "files": manifest.files or None,
        "hours": manifest.hours or None,
        "state": _state(manifest),
        "path": str(manifest.folder if manifest.recordings else pull_folder(manifest)),
        "channel": manifest.channel,
        "protocol": {
            "collar_each_side": manifest.protocol.collar,
            "skip_overlap": manifest.protocol.skip_overlap,
            "uem": manifest.use_uem,
        },
        "published": [
            {"system": item.system, "der": item.der / 100, "source": item.source, "note": item.note}
            for item in manifest.published
        ],
    }


def _as_text(manifest: Manifest) -> str:
    protocol = manifest.protocol
    overlap = "skipped" if protocol.skip_overlap else "scored"
    counts = [f"{manifest.files} files"] if manifest.files else []
    counts += [f"{manifest.hours:g} h"] if manifest.hours else []
    rows = [
        ("", manifest.title),
        ("licence", manifest.licence),
        ("homepage", manifest.homepage),
        ("contents", ", ".join(counts)),
        ("file ids", manifest.id_rule or (", ".join(manifest.ids) if manifest.ids else "")),
        ("channel", manifest.channel_rule),
        ("reference", manifest.reference),
        (
            "protocol",
            f"collar {protocol.collar:g} s on each side, overlap {overlap}, {'UEM' if manifest.use_uem else 'no UEM'}",
        ),
        ("state", _state(manifest)),
        ("folder", ", ".join(map(str, _folders(manifest)))),
        *(("download", _download(item)) for item in manifest.downloads),
        ("by hand", manifest.by_hand),
        *(
            ("published", f"{item.system}: DER {item.der:g} % ({'; '.join(filter(None, (item.source, item.note)))})")
            for item in manifest.published
        ),
    ]
    return f"{manifest.name}\n" + "".join(f"  {key:10} {value}\n" for key, value in rows if value)


def _download(item: Download) -> str:
    stated = f"{item.size / 1e6:.1f} MB" if item.size else "size not stated"
    if item.size is None and item.about_bytes:
        stated = f"about {item.about_bytes / 1e9:.1f} GB"
    return f"{item.url} ({stated}, {'sha256 ' + item.sha256 if item.sha256 else 'sha256 as first seen'})"


def _size(size: DownloadSize) -> str:
    parts = [f"{size.stated / 1e6:.0f} MB"] if size.stated or not (size.about or size.unknown) else []
    parts += [f"about {size.about / 1e6:.0f} MB"] if size.about else []
    parts += [f"{size.unknown} files of unknown size"] if size.unknown else []
    return " and ".join(parts)
