"""The systems that a benchmark can run: this project and its peers, each as the command line of its worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BackendError, OptionError
from ..user_folders import expanded

OURS = "diarize"
PEERS = {
    # Name: (module to look for, what to install).
    "pyannote": ("pyannote.audio", "pyannote.audio==4.0.7 soundfile"),
    "speakrs": ("speakrs", "speakrs==0.7.0"),
}


@dataclass(frozen=True)
class System:
    """A system under test: its `name` in tables and records, and the `command` that starts its worker."""

    name: str
    command: tuple[str, ...]


def our_system(model: str, device: str, mode: str, threads: int | None, tune_file: Path | None = None) -> System:
    """This project with these options."""
    command = [sys.executable, "-m", "diarize.bench.worker", "--model", model, "--device", device, "--mode", mode]
    if threads is not None:
        command += ["--threads", str(threads)]
    if tune_file is not None:
        command += ["--tune-file", str(expanded(tune_file).absolute())]
    return System(OURS, tuple(command))


def peer_system(name: str, python: str, model: str, device: str, mode: str) -> System:
    """A peer in the interpreter `python`; `model` is its own model, "" for its default.

    Raises
    ------
    OptionError
        No peer has this name, it has no such mode, or `device` is not stated.
    BackendError
        It is not installed in that interpreter.
    """
    if name not in PEERS:
        raise OptionError(f"unknown peer {name!r}; allowed are {', '.join(PEERS)}")
    if device == "auto":
        raise OptionError("a comparison needs --device cpu or --device cuda, so that all systems run on the same one")
    if mode == "fast" and (name == "pyannote" or device == "cpu"):
        raise OptionError(f"{name} has no fast mode on {device}; use --mode exact")
    _check_installed(name, python)
    script = Path(__file__).resolve().parent / "peers" / f"run_{name}.py"
    command = [python, str(script), "--device", device, "--mode", mode]
    return System(name, tuple([*command, "--model", model] if model else command))


def by_peer(values: Sequence[str] | None, default: str) -> Callable[[str], str]:
    """What a peer's name stands for in values like "speakrs=PATH", or "PATH" for all peers.

    Raises
    ------
    OptionError
        Two values are for the same peer.

    >>> by_peer(["speakrs=/a", "/b"], "")("pyannote")
    '/b'
    """
    found: dict[str, str] = {}
    for value in values or ():
        name, sign, rest = value.partition("=")
        key, text = (name, rest) if sign and name in PEERS else ("", value)
        if key in found:
            raise OptionError(
                f"{value!r} is the second value for {key or 'all peers'}; give one, or PEER=VALUE for each"
            )
        found[key] = text
    return lambda peer: found.get(peer, found.get("", default))


def worker_environment() -> dict[str, str]:
    """Environment of our worker: it must find this package, also where it is not installed."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _check_installed(name: str, python: str) -> None:
    module, packages = PEERS[name]
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    remedy = f"run: python -m venv peers && peers/bin/pip install {packages}, then add --peer-python peers/bin/python"
    try:
        done = subprocess.run([python, "-c", look], capture_output=True, timeout=120, check=False)
    except OSError as error:
        raise BackendError(f"the interpreter {python} cannot be started ({error.strerror}); {remedy}") from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"the interpreter {python} did not answer within 120 s; {remedy}") from error
    if done.returncode:
        raise BackendError(f"{name} is not installed for {python}; {remedy}")
