"""Options of `diarize run` about recordings, speakers and many files: their names, units and help."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class LabelOrder(StrEnum):
    """How speakers are numbered."""

    first_appearance = "first-appearance"
    parity = "parity"


Audio = Annotated[
    list[str],
    typer.Argument(
        metavar="AUDIO",
        help="Recordings: wav, flac, mp3, ogg, opus; m4a, mp4, webm with PyAV. Also - for standard input, a pipe, a "
        "folder, a pattern in quotes, or @FILE for a text file with one of these a line (paths start from the current "
        "folder, lines that begin with # are left out).",
    ),
]
Channel = Annotated[
    str,
    typer.Option(
        metavar="N|mix|split",
        help="N: only this channel, counted from 1. mix: the mean of all. split: each channel on its own, for calls "
        "with a side on each; speakers are then named CH1_SPEAKER_00 and so on, and numbers of speakers are those of "
        "each channel.",
    ),
]
Start = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0, help="Begin here; what lies before is not used. Times stay those of the recording."
    ),
]
End = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0, help="End here, in seconds from the recording's start. [default: its end]",
        show_default=False,
    ),
]  # fmt: skip
Order = Annotated[
    LabelOrder,
    typer.Option(
        help="How speakers are numbered: in the order in which they first talk, or as pyannote.audio does it.",
    ),
]
Embeddings = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|DIR|TEMPLATE",
        help="Also write the embedding of each speaker and of each window, with times in seconds, as .npz; named as "
        "for --output. --speakers-file can read it.",
    ),
]
Enroll = Annotated[
    list[str] | None,
    typer.Option(
        "--enroll",
        metavar="NAME=CLIP",
        help="Learn a voice from a recording of one person, best 10 s or more, and give NAME to the speaker who sounds "
        "like it. Repeat it for more voices, or for more clips of one. Others stay SPEAKER_00 and so on.",
        show_default=False,
    ),
]
SpeakersFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Known voices: a text file with NAME=CLIP lines, whose paths start from its own folder, or an .npz that "
        "--embeddings wrote and in which speakers have names.",
    ),
]
VoiceThreshold = Annotated[
    float | None,
    typer.Option(
        metavar="COSINE",
        min=-1,
        max=1,
        help="How similar a speaker must be to a known voice to get its name, from -1 to 1. [default: 0.7 for "
        "campplus, 0.5 for community-1]",
        show_default=False,
    ),
]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Also search the folders below a folder.")]
SkipExisting = Annotated[
    bool,
    typer.Option(
        "--skip-existing", help="Leave out recordings whose results are all there, so that a batch can be resumed."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        help="Worker processes, each with a share of --threads; they take the longest recordings first. Worth it for "
        "many short ones.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE,...",
        help="One worker process for each of these devices, such as cuda:0,cuda:1, instead of --device and --jobs.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Let the workers of a dask.distributed cluster do it, such as tcp://host:8786. Recordings are read there "
        "where they lie at the same path, else sent. Needs the extra cluster.",
    ),
]
