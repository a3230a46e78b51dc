"""Diarize files named on standard input with pyannote.audio 4.0.7 community-1; a line of JSON for each.

    PEER_PYTHON tests/benchmarks/peers/worker_pyannote.py --shared DIR

Segmentation is the real one, the ResNet34 random (as in the other workers), PLDA the real one. Waveforms are read with
soundfile, so that no ffmpeg is needed; the time runs from opening the file to the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ["PYANNOTE_METRICS_ENABLED"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
warnings.filterwarnings("ignore")


def build(shared: Path) -> object:
    """The community-1 pipeline from local arrays."""
    import torch
    from pyannote.audio.core.plda import PLDA
    from pyannote.audio.core.task import Problem, Resolution, Specifications
    from pyannote.audio.models.embedding.wespeaker import WeSpeakerResNet34
    from pyannote.audio.pipelines import SpeakerDiarization
    from safetensors.numpy import load_file

    from tests.benchmarks.peers.speakrs_model import pyannet
    from tests.tools.random_resnet34 import random_resnet34

    embedding = WeSpeakerResNet34()
    state = {key: torch.as_tensor(value) for key, value in random_resnet34(0).items()}
    embedding.load_state_dict(state, strict=False)
    embedding.specifications = Specifications(
        problem=Problem.REPRESENTATION, resolution=Resolution.CHUNK, duration=10.0, classes=["a"]
    )
    embedding.eval()
    plda_folder = shared / "models" / "plda"
    pipeline = SpeakerDiarization(
        segmentation=pyannet(load_file(shared / "models" / "segmentation-3.0.safetensors")),
        embedding=embedding,
        plda=PLDA(plda_folder / "xvec_transform.npz", plda_folder / "plda.npz"),
        embedding_exclude_overlap=True,
        embedding_batch_size=32,
        segmentation_batch_size=32,
    )
    pipeline.instantiate(pipeline.default_parameters())
    return pipeline


def main() -> None:
    """Serve standard input until it ends."""
    import soundfile
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, required=True)
    pipeline = build(parser.parse_args().shared)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        samples, rate = soundfile.read(line.strip(), dtype="float32", always_2d=True)
        output = pipeline({"waveform": torch.from_numpy(samples.T), "sample_rate": rate, "uri": "file"})
        seconds = time.perf_counter() - started
        turns = len(list(output.speaker_diarization.itertracks()))
        print(json.dumps({"seconds": seconds, "turns": turns}), flush=True)


if __name__ == "__main__":
    main()
