"""`diarize cuda tune`: time every candidate of every layer on a GPU, and write the fastest that are right."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BackendError, OptionError
from ..user_folders import expanded
from . import _options
from ._compiling import Compiling
from ._output import check_stdout, exit_codes, say, start_logging, write_stdout
from ._tune_report import as_json, as_text
from ._tuning import Tuning

if TYPE_CHECKING:
    from ..hardware import Device
    from ..model.weights import ModelWeights
    from ..recipe import Key, Recipe, Validation
    from ..tuner.log import Session
    from ..tuner.search import Outcome
    from ..tuner.site import Bench
    from ..tuner.validate import Example
    from ..tuner.wish import Wish


def tune(
    device: Annotated[
        str, typer.Option(metavar="cuda[:N]", help="The GPU, as diarize devices names it; its number N will do.")
    ] = "cuda",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where the tune file goes. [default: DIARIZE_TUNE_FILE, else a file for this kind of GPU in the "
            "user's configuration folder, where diarize looks for it]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print, but write no tune file.")] = False,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER,...",
            help="Only these layers or networks (fbank, pyannet, resnet34, campplus), with the layers that are their "
            "parts. diarize cuda candidates lists them.",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Precisions that may win, the fastest of several as a whole. ResNet34: fp16 (the default), tf32, "
            "fp32. LSTM stack: split (the default); wxsplit, hsplit, wsplit, ihsplit and pyannet.fp16 need --validate.",
        ),
    ] = None,
    model: _options.Model = "auto",
    force: Annotated[
        bool,
        typer.Option("--force", "-f", help="Measure again where a tune file that fits is there already; replace FILE."),
    ] = False,
    validate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="AUDIO",
            help="Diarize this recording with the new choices and in float32, and write nothing if the diarization "
            "error rate of one against the other is above 0.1 points. Can be repeated.",
        ),
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RTTM",
            help="Who really spoke in the recordings of --validate: the error rate against it may change by 0.1 "
            "points. Can be repeated.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write every sample, as lines of JSON.", show_default=False)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    verbose: _options.Verbose = 0,
    quiet: _options.Quiet = 0,
) -> None:
    """Time every way to compute each layer on this GPU, and write down which is the fastest.

    Each candidate is first compared with float32, and one that is wrong is not timed. Batch sizes are 1, 4, 8, 16, 32
    windows and the pipeline's own. Choices at different batch sizes give the same bytes, so results do not depend on
    them. A tune file that fits is kept unless --force is given.

    The table has every candidate at the pipeline's own batch size and the winners at the others; with -v all. * is the
    winner, + the runner-up.
    """
    verbosity = _options.verbosity_of(verbose, quiet)
    with exit_codes(verbosity):
        start_logging(verbosity)
        check_stdout("open it")
        _options.check_model(model)
        number = _number(device)
        wanted, precisions = split_names(layers, "--layers"), split_names(precision, "--precision")
        from ..audio import open_audio
        from ..tuner.validate import examples
        from ..tuner.wish import check_names

        check_names(wanted, precisions, bool(validate))
        recordings = examples(validate or [], reference or [])
        for example in recordings:
            with open_audio(example.path):
                pass
        gpu = _gpu(number)
        job = _Job(gpu, model, wanted, precisions, recordings, output, log, verbosity)
        if not dry_run and not force and job.keeps():
            if json_:
                write_stdout(job.kept_as_json())
            return
        job.check_places(dry_run, force)
        job.measure()
        records = job.validate()
        recipe = job.compose(records)
        if not dry_run:
            from ..recipe import write

            write(job.path, recipe)
        if json_:
            write_stdout(as_json(recipe, job.path, not dry_run, job.session, job.seconds))
        else:
            write_stdout(as_text(job.outcome, job.session, verbosity >= 1))
        if verbosity >= 0:
            number = len(recipe.entries)
            did = "would be written to" if dry_run else "written to"
            say(f"{number} choices of {len({e.layer for e in recipe.entries})} layers {did} {job.path}")


def open_bench(gpu: Device, weights: ModelWeights, wish: Wish) -> Bench:
    """The GPU as the tuner's bench."""
    from ..tuner.device import DeviceBench

    return DeviceBench(gpu.index, weights, max(batch for _, batch in wish.tasks()), gpu)


class _Job:
    """One call of the command."""

    outcome: Outcome
    session: Session

    def __init__(
        self,
        gpu: Device,
        model: str,
        layers: list[str],
        precisions: list[str],
        recordings: list[Example],
        output: Path | None,
        log: Path | None,
        verbosity: int,
    ) -> None:
        if output is not None and str(output) == "-":
            raise OptionError("--output is '-'; name a file, or give --json, which prints what is written as well")
        from ..backend.cuda_key import present_key
        from ..backend.cuda_networks import overflowing
        from ..model.checksums import network_checksums
        from ..model.resnet34 import resnet34_layers
        from ..model.weights import EmbeddingNetwork, load_model
        from ..recipe import tune_path
        from ..tuner.tunefile import known
        from ..tuner.wish import wish_for

        self._gpu = gpu
        self._model = model
        self._recordings = recordings
        self._log = log
        self._verbosity = verbosity
        self._named = output is not None
        self.path = tune_path(gpu) if output is None else expanded(output)
        self.weights = load_model(model)
        network = self.weights.network
        fits = network is not EmbeddingNetwork.RESNET34 or not overflowing(resnet34_layers(self.weights.embedding))
        capability = gpu.compute_capability or (0, 0)
        self.wish = wish_for(network.value, capability, layers, precisions, bool(recordings), fits)
        self.key: Key = present_key(gpu, network_checksums(self.weights))
        self._before, self._unfit = known(self.path, self.key)
        self.seconds: dict[str, float] = {}

    def keeps(self) -> bool:
        """Whether the tune file that is there is enough; says so."""
        from ..tuner.tunefile import lacking

        if self._before is None or lacking(self._before, self.wish.layers):
            return False
        if self._verbosity >= 0:
            say(f"{self.path} fits this GPU, build and model, and is kept; --force measures again")
        return True

    def kept_as_json(self) -> str:
        """The document for a file that is kept."""
        assert self._before is not None
        return as_json(self._before, self.path, False, None, {})

    def check_places(self, dry_run: bool, force: bool) -> None:
        """Raises `OutputError` where the results cannot be written; better now than after the work."""
        from ..errors import OutputError
        from ..outputs.files import check_writable
        from ..tuner.tunefile import foreign

        if self._log is not None:
            if self._log.is_file() and self._log.stat().st_size and not force:
                raise OutputError(f"{self._log} exists already; --force replaces it")
            check_writable(self._log)
            if self._log.resolve() == self.path.resolve() and not dry_run:
                raise OptionError(f"--log and the tune file are both {self.path}; name two files")
        if dry_run:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {self.path.parent}: {error.strerror}") from error
        check_writable(self.path)
        if self._named and not force and self.path.is_file() and foreign(self.path):
            raise OutputError(f"{self.path} exists already and is no tune file; --force replaces it")

    def measure(self) -> None:
        """Tune, and write the log also where the device fails on the way."""
        from ..errors import DiarizeError
        from ..tuner.log import Session
        from ..tuner.run import closed_after
        from ..tuner.run import tune as run

        if self._verbosity >= 0:
            say(f"tuning {self._gpu}, {self._gpu.name}, for the model {self.weights.name}")
            if self._unfit:
                say(f"the tune file that is there is replaced: {self._unfit}")
        self.session = Session(self.wish.rules, self._about())
        bench = open_bench(self._gpu, self.weights, self.wish)
        try:
            with closed_after(bench), Compiling(self._verbosity) as compiling, Tuning(self._verbosity) as heard:
                self.outcome = run(bench, self.wish, self.session, compiling, heard)
        except DiarizeError:
            self._write_log()
            raise
        self._write_log()
        self.seconds = {name: round(value, 2) for name, value in self.session.seconds.items()}
        if self._verbosity >= 0:
            say(", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items()))
            for layer in self.outcome.open_layers:
                say(f"warning: {layer}: no candidate can be used; the normal choice remains")

    def _write_log(self) -> None:
        if self._log is not None:
            self.session.write(self._log)

    def _about(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {"key": asdict(self.key), "model": self.weights.name, "batches": list(self.wish.batches)}

    def validate(self) -> list[Validation]:
        """Compare the turns of recordings with those of float32."""
        from ..recipe import Validation
        from ..tuner import validate as whole

        if not self._recordings:
            return []
        # The file of this check alone: what is being found out is taken for granted in it.
        granted = [Validation(str(example.path), 1.0, 0.0, whole.LIMIT) for example in self._recordings]
        exact = whole.float32_recipe(self.key.capability)
        device = str(self._gpu)
        with tempfile.TemporaryDirectory(prefix="diarize-") as folder, Tuning(self._verbosity) as heard:
            tuned = whole.opener(self.compose(granted), Path(folder) / "tuned.json", self._model, device)
            truth = whole.opener(exact, Path(folder) / "float32.json", self._model, device)
            return whole.validate(self._recordings, tuned, truth, heard=heard)

    def compose(self, records: list[Validation]) -> Recipe:
        """The tune file."""
        from ..tuner.tunefile import compose

        about = {"model": self.weights.name, "command": "diarize cuda tune", "seconds": self.seconds}
        return compose(self.outcome, self.key, self._before, about, records)


def _gpu(index: int) -> Device:
    """The GPU of this number.

    Raises
    ------
    BackendError
        It cannot be used.
    """
    from ..backend import cuda_devices
    from ..backend.select import obstacle

    found = cuda_devices.discover()
    reason = obstacle(found, index, cuda_devices.missing_packages())
    if reason:
        raise BackendError(f"there is nothing to tune: {reason}; see diarize devices")
    return found.gpus[index]


def _number(device: str) -> int:
    """The number of the GPU that `--device` names.

    Raises
    ------
    OptionError
        It names none.
    """
    found = re.fullmatch(r"cuda|(?:cuda:)?(\d+)", device)
    if found is None:
        raise OptionError(f"device is {device!r}; allowed are cuda, cuda:N and N (N = GPU number from 0)")
    return int(found[1] or 0)


def split_names(values: list[str] | None, option: str) -> list[str]:
    """Names that were given one by one or with commas between them.

    Raises
    ------
    OptionError
        The option was given without any.
    """
    names = [part.strip() for value in values or () for part in value.split(",") if part.strip()]
    if values and not names:
        raise OptionError(f"{option} is given without a name; name something, or leave it out")
    return names
