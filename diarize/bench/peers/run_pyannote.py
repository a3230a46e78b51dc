"""pyannote.audio as a process of its own, with the protocol of `diarize.bench.worker`; it needs nothing else.

    PEER_PYTHON run_pyannote.py --device cpu|cuda[:N] --mode exact|fast [--model NAME_OR_FOLDER]

It has one mode, with windows every second; fast is refused. Where soundfile is installed it reads the recordings,
within the timed part, so that no ffmpeg is needed; else pyannote.audio reads them itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import time

MODEL = "pyannote/speaker-diarization-community-1"


def main() -> None:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**content: object) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    # It would report every recording's length to its makers.
    os.environ["PYANNOTE_METRICS_ENABLED"] = "0"
    try:
        import torch
        from pyannote.audio import Pipeline

        name = options.model or MODEL
        pipeline = Pipeline.from_pretrained(name)
        if pipeline is None:
            raise RuntimeError(f"{name} could not be loaded; accept its conditions on Hugging Face and set HF_TOKEN")
        pipeline.to(torch.device(options.device))
    except Exception as error:
        send(event="error", message=f"{type(error).__name__}: {error}")
        return
    version = importlib.metadata.version("pyannote.audio")
    send(event="ready", about={"version": version, "device": options.device, "mode": "exact", "model": name})
    has_soundfile = importlib.util.find_spec("soundfile") is not None
    for line in sys.stdin:
        path = json.loads(line)["path"]
        started = time.perf_counter()
        try:
            source = path
            if has_soundfile:
                import soundfile

                samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
                source = {"waveform": torch.from_numpy(samples.T), "sample_rate": rate, "uri": "recording"}
            output = pipeline(source)
            # Turns are ready only when they have left the device.
            tracks = list(getattr(output, "speaker_diarization", output).itertracks(yield_label=True))
        except Exception as error:
            send(event="error", message=f"{type(error).__name__}: {error}")
            continue
        seconds = time.perf_counter() - started
        turns = [[segment.start, segment.end, str(label)] for segment, _, label in tracks]
        send(event="result", seconds=seconds, turns=turns)


if __name__ == "__main__":
    main()
