"""The record of a run: results of each system, every sample, the environment; written, read and checked.

Schema history
--------------
diarize-bench/1: created, dataset, protocol, rounds, warmup, environment, main, systems, failed, warnings, processes,
samples. Rates are fractions, times in seconds, memory in bytes.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..dataset.download import file_sha256
from ..dataset.load import Dataset, Recording
from ..errors import FormatError
from ..outputs.rttm import read_rttm
from ..score.der import score_file
from ..score.parts import FileScore, sum_parts
from ..score.report import der_json, file_json
from ..types import Turn
from .samples import Process, Sample, Samples

SCHEMA = "diarize-bench/1"
FILE = "record.json"


def dataset_json(dataset: Dataset) -> dict[str, Any]:
    """What was benchmarked: checksums of audio and references, and one over all of them."""
    files = {
        recording.file_id: {
            "audio_sha256": file_sha256(recording.audio),
            "reference_sha256": _reference_sha256(recording),
        }
        for recording in dataset.recordings
    }
    content = json.dumps([files, dataset.channel], sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()
    return {"name": dataset.name, "channel": dataset.channel, "fingerprint": fingerprint, "files": files}


def score_system(dataset: Dataset, results: Path) -> dict[str, FileScore]:
    """The score of each file, from the RTTM files in `results`; a file without one is missed as a whole."""
    scores = {}
    for recording in dataset.recordings:
        turns = read_result(results / f"{recording.file_id}.rttm")
        regions = recording.regions
        scores[recording.file_id] = score_file(recording.file_id, recording.reference, turns, regions, dataset.protocol)
    return scores


def read_result(path: Path) -> tuple[Turn, ...] | None:
    """Turns of one RTTM file that a run has written, None where it has written none."""
    if not path.exists():
        return None
    lines = [turn for turns in read_rttm(path).values() for turn in turns]
    return tuple(Turn(float(line.start), float(line.end), line.speaker) for line in lines)


def durations(samples: Samples) -> dict[str, float]:
    """Decoded seconds of audio of each file, as this project's decoder counts them."""
    return {item.file_id: item.duration for item in samples.samples if item.duration and not item.error}


def system_json(
    name: str,
    samples: Samples,
    scores: Mapping[str, FileScore],
    lengths: Mapping[str, float],
    warmup: int,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Results of one system: DER, speed both ways, stages, memory, and each file."""
    mine = [item for item in samples.samples if item.system == name]
    processes = [item for item in samples.processes.values() if item.system == name]
    der, jer, count = sum_parts(scores.values())
    warm = [item for item in mine if not item.error and item.position >= warmup]
    return {
        "about": dict(processes[-1].about) if processes else {},
        "command": list(command),
        **der_json(der),
        "jer": jer.jer,
        "speaker_count": {"files": count.files, "exact": count.exact, "difference": count.difference},
        "rtfx": {
            "warm": _pooled_rtfx(warm, lengths),
            "warm_rounds": _by_round(warm, lengths),
            **_whole(mine, processes, lengths),
        },
        "startup_seconds": [item.startup_seconds for item in processes],
        "stages": _stages(warm),
        "peak_host_bytes": max((item.peak_host_bytes for item in processes), default=0),
        "peak_gpu_bytes": max((item.peak_gpu_bytes for item in processes if item.peak_gpu_bytes), default=None),
        "files": {file_id: _file(score, file_id, mine, warmup) for file_id, score in scores.items()},
    }


def record_json(
    dataset: Mapping[str, Any],
    protocol: Mapping[str, Any],
    samples: Samples,
    scores: Mapping[str, Mapping[str, FileScore]],
    rounds: int,
    warmup: int,
    commands: Mapping[str, Sequence[str]],
    environment: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The whole record; `scores` by system, the first of which is the one that thresholds and comparisons are about."""
    lengths = durations(samples)
    main = next(iter(scores))
    files = {name: {**about, "duration": lengths.get(name)} for name, about in dataset["files"].items()}
    return {
        "schema": SCHEMA,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "dataset": {**dataset, "files": files},
        "protocol": dict(protocol),
        "rounds": rounds,
        "warmup": warmup,
        "environment": dict(environment),
        "main": main,
        "systems": {name: system_json(name, samples, scores[name], lengths, warmup, commands[name]) for name in scores},
        "failed": failed(samples),
        "warnings": list(warnings),
        "processes": [asdict(item) for item in samples.processes.values()],
        "samples": [asdict(item) for item in samples.samples],
    }


def failed(samples: Samples) -> list[dict[str, str]]:
    """Each file that failed in a system, with the reason."""
    found = {(item.system, item.file_id): item.error for item in samples.samples if item.error}
    return [{"system": system, "file": name, "error": error} for (system, name), error in sorted(found.items())]


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, or in a folder that a run has written.

    Raises
    ------
    FormatError
        It cannot be read, or is not a record of this schema.
    """
    if path.is_dir():
        path = path / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror}); name a record of diarize bench", str(path)) from error
    except ValueError as error:
        raise FormatError(f"is not JSON ({error}); name a record of diarize bench", str(path)) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise FormatError(f"schema is {schema!r}; allowed is {SCHEMA!r}; name a record of diarize bench", str(path))
    try:
        system = document["systems"][document["main"]]
        for item in system["files"].values():
            item["der"], item["seconds"], item["rttm_sha256"]
        document["dataset"]["fingerprint"], document["protocol"], system["der"], system["rtfx"]["warm"]
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{error} is missing or of the wrong kind; make the record again", str(path)) from error
    return document


def _reference_sha256(recording: Recording) -> str:
    content = [[(turn.start, turn.end, turn.speaker) for turn in recording.reference], recording.regions]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _file(score: FileScore, file_id: str, mine: Iterable[Sample], warmup: int) -> dict[str, Any]:
    own = [item for item in mine if item.file_id == file_id]
    fine = [item for item in own if not item.error]
    digests = {item.rttm_sha256 for item in fine}
    return {
        **file_json(score),
        "seconds": [item.seconds for item in fine if item.position >= warmup],
        "rttm_sha256": fine[0].rttm_sha256 if fine else None,
        "identical_rounds": len(digests) <= 1,
        "error": next((item.error for item in own if item.error), None),
    }


def _pooled_rtfx(samples: Sequence[Sample], lengths: Mapping[str, float]) -> float | None:
    """Seconds of audio over the sum of each file's median seconds."""
    times: dict[str, list[float]] = {}
    for item in samples:
        times.setdefault(item.file_id, []).append(item.seconds)
    audio = sum(lengths.get(name, 0.0) for name in times)
    spent = sum(statistics.median(values) for values in times.values())
    return audio / spent if spent else None


def _by_round(samples: Sequence[Sample], lengths: Mapping[str, float]) -> list[float]:
    """The warm speed of each round alone."""
    rounds = sorted({item.round for item in samples})
    found = (_pooled_rtfx([item for item in samples if item.round == number], lengths) for number in rounds)
    return [speed for speed in found if speed is not None]


def _whole(mine: Sequence[Sample], processes: Sequence[Process], lengths: Mapping[str, float]) -> dict[str, Any]:
    """Speed of the whole process, start-up and first-time costs included, of each round that one process did alone."""
    speeds = []
    for number in sorted({item.round for item in mine}):
        owners = [item for item in processes if item.round == number]
        first = [item for item in mine if item.round == number and item.first and not item.error]
        if len(owners) == 1 and first:
            spent = owners[0].startup_seconds + sum(item.seconds for item in first)
            speeds.append(sum(lengths.get(item.file_id, 0.0) for item in first) / spent)
    return {"whole_process": statistics.median(speeds) if speeds else None, "whole_process_rounds": speeds}


def _stages(samples: Sequence[Sample]) -> dict[str, float]:
    """Seconds of each stage over all files, the median of the rounds for each file."""
    times: dict[str, dict[str, list[float]]] = {}
    for item in samples:
        for stage, seconds in item.stages.items():
            times.setdefault(stage, {}).setdefault(item.file_id, []).append(seconds)
    return {stage: sum(map(statistics.median, files.values())) for stage, files in times.items()}
