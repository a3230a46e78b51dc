"""Make the recordings of datasets/mini with the speech synthesisers flite and espeak-ng.

    python tests/tools/make_mini.py [--to datasets/mini]

Needs flite 2.2 and espeak-ng 1.51 on the path (Debian: apt install flite espeak-ng). The same programs give the same
bytes. Each turn is synthesised, trimmed, and placed; the reference is where it was placed, split at pauses of 0.3 s or
more, so it is exact to the 10 ms of the frames that tell speech from silence. 16 kHz mono FLAC, 16 bits.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from scipy.signal import butter, sosfiltfilt

RATE = 16_000
FRAME = 160
# Below this share of the loudest frame's energy, a synthesised clip is silent.
SILENCE = 10 ** (-42 / 10)
PAUSE_S = 0.3
LEAD_S = 0.4

FLITE = {"slt", "rms", "awb", "kal16"}


@dataclass(frozen=True)
class Line:
    """One turn: who, seconds from the end of the turn before (negative: they overlap), and what is said."""

    voice: str
    gap: float
    text: str


@dataclass(frozen=True)
class Scene:
    """One recording. `snr_db`: pink noise at this ratio to the speech. `band`: kept frequencies in Hz."""

    name: str
    lines: tuple[Line, ...]
    seed: int
    snr_db: float | None = None
    band: tuple[float, float] | None = None


SCENES = (
    Scene(
        "overlap",
        (
            Line("slt", 0.0, "Let us begin with the harbour. The crane on the east side has been out of order since "
                             "Tuesday, and two ships are waiting for it."),
            Line("rms", 0.4, "I spoke to the workshop this morning. They have the parts, but the man who knows that "
                             "crane is on holiday until the end of the month."),
            Line("awb", -1.6, "That cannot be right, we trained three people for it last year, and all of them are "
                              "still on the list."),
            Line("slt", -0.9, "Please, one after the other. What would it cost to call somebody in from outside?"),
            Line("rms", 0.3, "About two thousand a day, and they would need four days at the least. I can ask for an "
                             "offer this afternoon if you want."),
            Line("awb", -1.3, "Before we pay for that, let me ring the three of them. Give me until noon."),
            Line("slt", 0.5, "Good. We will meet again at one, and then we decide."),
        ),
        seed=1,
    ),
    Scene(
        "noise",
        (
            Line("awb", 0.0, "Can you hear me over the engine? I am standing right beside the pump, and it is rather "
                             "loud in here today."),
            Line("slt", 0.5, "Yes, I hear you well enough. Read me the two gauges on the left, the upper one first, "
                             "then the lower one."),
            Line("awb", 0.6, "The upper one says four point two, and the needle does not move. The lower one swings "
                             "between six and seven."),
            Line("rms", -0.8, "It should not swing at all. Close the valve behind you by half a turn and tell us "
                              "what happens."),
            Line("awb", 0.9, "Half a turn. It is slower now, but it still moves a little."),
            Line("slt", 0.3, "Leave it like that for ten minutes. If it settles, there was air in the pipe, and we "
                             "are done for today."),
        ),
        seed=2,
        snr_db=10.0,
    ),
    Scene(
        "phone",
        (
            Line("slt", 0.0, "Good morning, this is the library. How can I help you?"),
            Line("rms", 0.5, "Good morning. I borrowed a book about bridges, and I am afraid that my dog has eaten "
                             "the last chapter of it."),
            Line("slt", 0.6, "Oh dear. Do you remember the title, or the number on the back of the book?"),
            Line("rms", 0.7, "The number is seven two four, point six. The title went the same way as the chapter."),
            Line("slt", 0.4, "I see. We can order another copy. It would be eighteen pounds, and you could pay it "
                             "when you come in."),
            Line("rms", -0.6, "That is fair. And could you tell me how it ends?"),
            Line("slt", 0.5, "The bridge holds."),
        ),
        seed=3,
        band=(300.0, 3400.0),
    ),
    Scene(
        "five",
        (
            Line("rms", 0.0, "Five of us, ten minutes, one minute each and then questions. I start. The accounts are "
                             "closed, and there is a little left over."),
            Line("slt", 0.4, "On my side the new timetable is printed. It goes out on Friday, and the old one is "
                             "valid until the end of the week."),
            Line("en-us+f3", 0.5, "The heating in the small hall has been repaired. I would like to thank whoever "
                                  "carried all those chairs back."),
            Line("awb", 0.4, "That was the chess club, and they would like the hall on Thursdays from now on, if "
                             "nobody minds."),
            Line("en-gb+m3", 0.5, "I do mind, since the choir sings there on Thursdays. But they could have the room "
                                  "upstairs, which is quieter anyway."),
            Line("awb", -0.7, "Upstairs will do very well. They do not sing."),
            Line("slt", 0.4, "Then that is settled, and I will put it into the next timetable."),
        ),
        seed=4,
    ),
    Scene(
        "alone",
        (
            Line("kal16", 0.0, "This is a note to myself. The train leaves at a quarter past seven, from the other "
                               "platform, because of the works."),
            Line("kal16", 2.0, "Take the blue folder, the charger, and the letter for the insurance. Do not forget "
                               "the letter this time."),
            Line("kal16", 3.0, "And water the plants before you go."),
        ),
        seed=5,
    ),
)  # fmt: skip


def synthesise(voice: str, text: str) -> np.ndarray:
    """Speech of one line at 16 kHz, (num_samples,) float64, without silence around it, at a set loudness."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.wav"
        if voice in FLITE:
            command = ["flite", "-voice", voice, "-t", text, "-o", str(path)]
        else:
            command = ["espeak-ng", "-v", voice, "-s", "150", "-w", str(path), text]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples, rate = soundfile.read(path)
    if rate != RATE:
        samples = soxr.resample(samples, rate, RATE, quality="HQ")
    speech = speaking(samples)
    samples = samples[speech[0] * FRAME : (speech[-1] + 1) * FRAME]
    return samples * (0.08 / np.sqrt(np.mean(samples**2)))


def speaking(samples: np.ndarray) -> np.ndarray:
    """Numbers of the 10 ms frames that hold speech."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    energy = np.mean(frames**2, axis=1)
    return np.flatnonzero(energy > SILENCE * energy.max())


def stretches(samples: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) in samples of speech without a pause of 0.3 s or more."""
    frames = speaking(samples)
    breaks = np.flatnonzero(np.diff(frames) > PAUSE_S * RATE / FRAME) + 1
    return [(part[0] * FRAME, (part[-1] + 1) * FRAME) for part in np.split(frames, breaks)]


def mix(scene: Scene) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """The recording (num_samples,) and its turns: start and end in seconds, and the voice."""
    clips, turns, end = [], [], int(LEAD_S * RATE)
    for line in scene.lines:
        clip = synthesise(line.voice, line.text)
        start = end + round(line.gap * RATE)
        clips.append((start, clip))
        turns += [((start + a) / RATE, (start + b) / RATE, line.voice) for a, b in stretches(clip)]
        end = start + len(clip)
    speech = np.zeros(end + int(LEAD_S * RATE))
    for start, clip in clips:
        speech[start : start + len(clip)] += clip
    # What no microphone is without, 60 dB below full scale.
    noise = np.random.default_rng(scene.seed).standard_normal(len(speech))
    out = speech + 1e-3 * noise
    if scene.snr_db is not None:
        pink = pinken(noise)
        power = np.mean(np.concatenate([clip for _, clip in clips]) ** 2)
        out = speech + pink * np.sqrt(power / np.mean(pink**2)) * 10 ** (-scene.snr_db / 20)
    if scene.band is not None:
        out = sosfiltfilt(butter(4, scene.band, "bandpass", fs=RATE, output="sos"), out)
    return out * min(1.0, 0.95 / np.abs(out).max()), sorted(turns)


def pinken(noise: np.ndarray) -> np.ndarray:
    """White noise with its power falling as 1 / frequency above 20 Hz."""
    spectrum = np.fft.rfft(noise)
    frequency = np.fft.rfftfreq(len(noise), 1 / RATE)
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(frequency, 20.0)), len(noise))


def main() -> None:
    """Write every recording with its RTTM and UEM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parents[2] / "datasets" / "mini")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        samples, turns = mix(scene)
        soundfile.write(folder / f"{scene.name}.flac", samples, RATE, "PCM_16")
        (folder / f"{scene.name}.rttm").write_text(
            "".join(
                f"SPEAKER {scene.name} 1 {start:.3f} {end - start:.3f} <NA> <NA> {voice} <NA> <NA>\n"
                for start, end, voice in turns
            )
        )
        (folder / f"{scene.name}.uem").write_text(f"{scene.name} 1 0.000 {len(samples) / RATE:.3f}\n")
        print(f"{scene.name}: {len(samples) / RATE:.1f} s, {len(turns)} turns")


if __name__ == "__main__":
    main()
