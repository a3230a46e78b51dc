"""What the CPU backend finds in the shared recordings, for comparison on a machine where computing it is dear.

    python tests/tools/cpu_results.py MODEL OUT [MODE]

writes OUT/<network>-<mode>/<recording>.npz: classes (C, 589), which slots have an embedding, and these, one a row;
turns and speakers.
tests/kernels/test_cuda_pipeline.py reads the folder that DIARIZE_CPU_RESULTS names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import diarize.pipeline
from tests.conftest import shared_folder


def main(model: str, out: Path, mode: str = "exact") -> None:
    """Write a file for each recording."""
    kept: dict[str, Any] = {}
    assemble = diarize.pipeline.assemble

    def spy(analysis: Any, *rest: Any) -> Any:
        kept["analysis"] = analysis
        return assemble(analysis, *rest)

    diarize.pipeline.assemble = spy
    pipeline = diarize.pipeline.Pipeline.from_pretrained(model, "cpu", mode)
    out /= f"{pipeline.model.network.value}-{mode}"
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted((shared_folder() / "data").rglob("*.flac")):
        result = pipeline.diarize(path)
        analysis = kept["analysis"]
        where = np.isfinite(analysis.embeddings[..., 0])
        np.savez_compressed(
            out / f"{path.stem}.npz",
            classes=analysis.classes,
            where=where,
            rows=analysis.embeddings[where],
            turns=np.array([(turn.start, turn.end) for turn in result.turns]),
            speakers=np.array([turn.speaker for turn in result.turns]),
        )
        print(f"{path.stem}: {len(result.turns)} turns")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
