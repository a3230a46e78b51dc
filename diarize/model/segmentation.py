"""The segmentation network: 10 s of samples to 589 frames of seven powerset classes.

PyanNet of pyannote segmentation-3.0: sinc filters and two convolutions with pooling and instance norm, four
bidirectional LSTM layers, three dense layers. The sinc filters run once over overlapping windows.

References
----------
Bredin 2023, "pyannote.audio 2.1 speaker diarization pipeline", Interspeech; Ravanelli and Bengio 2018, "Speaker
recognition from raw waveform with SincNet", SLT; Plaquet and Bredin 2023, "Powerset multi-class cross entropy loss for
neural speaker diarization", Interspeech.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import numpy as np

from ..backend.base import Backend, BoundLayer, Buffer
from ..errors import ModelError, OptionError
from ..framing import FRAMES_PER_WINDOW, WINDOW_SAMPLES
from ..layers import Layer, Op

NUM_CLASSES = 7
# Windows that go through the LSTM together; a multiple of the rows of its register tile.
GROUP_WINDOWS = 12

_TAPS = 251
_SINC_STRIDE = 10
_SINC_POSITIONS = (WINDOW_SAMPLES - _TAPS) // _SINC_STRIDE + 1
_SINC_FILTERS = 80
_CHANNELS = 60
# Times after each max-pooling by 3; a convolution of 5 taps takes 4.
_POOLED_TIMES = _SINC_POSITIONS // 3
_CONV1_TIMES = (_POOLED_TIMES - 4) // 3
_LSTM_SIZE = 256
_DENSE_SIZE = 128
_NORM = {"epsilon": 1e-5}
_LSTM_LAYERS = 4
_LSTM_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def segmentation_layers(weights: Mapping[str, np.ndarray]) -> tuple[Layer, ...]:
    """The network as layers, in the order in which they run.

    Raises
    ------
    ModelError
        A tensor is missing.
    """
    try:
        bank = weights["conv0.weight"].squeeze(1)
        layers = [
            Layer("segmentation.sinc", Op.SINC, {"weight": bank}, {"stride": _SINC_STRIDE}),
            Layer(
                "segmentation.sinc_pool",
                Op.SINC_POOL,
                {
                    "filters": bank,
                    "wav_weight": weights["wav_norm.weight"],
                    "wav_bias": weights["wav_norm.bias"],
                    "weight": weights["norm0.weight"],
                    "bias": weights["norm0.bias"],
                },
                {"stride": _SINC_STRIDE, **_NORM},
            ),
        ]
        for index in (1, 2):
            tensors = {name: weights[f"conv{index}.{name}"] for name in ("weight", "bias")}
            tensors |= {f"norm_{name}": weights[f"norm{index}.{name}"] for name in ("weight", "bias")}
            layers.append(Layer(f"segmentation.conv{index}", Op.CONV_POOL, tensors, _NORM))
        for index in range(_LSTM_LAYERS):
            names = [(name, side) for name in _LSTM_WEIGHTS for side in ("", "_reverse")]
            tensors = {name + side: weights[f"lstm.{name}_l{index}{side}"] for name, side in names}
            layers.append(Layer(f"segmentation.lstm{index}", Op.BILSTM, tensors))
        for name, activation in (("lin0", "leaky"), ("lin1", "leaky"), ("cls", "none")):
            tensors = {part: weights[f"{name}.{part}"] for part in ("weight", "bias")}
            layers.append(Layer(f"segmentation.{name}", Op.LINEAR, tensors, {"activation": activation}))
    except KeyError as error:
        raise ModelError(f"segmentation weights lack the tensor {error}; install or pull the model again") from error
    return tuple(layers)


class SegmentationNetwork:
    """Which powerset class each frame of each window is in: none; 0; 1; 2; 0+1; 0+2; 1+2.

    The same window gives the same bytes whatever stretch it lies in and whatever windows come with it. Methods may be
    called from several threads at once; each thread keeps its own work space, some 35 MB.

    Parameters
    ----------
    weights
        Tensors by name, as from `load_segmentation`.
    backend
        Where the network runs.

    Raises
    ------
    ModelError
        A tensor is missing.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], backend: Backend) -> None:
        layers = segmentation_layers(weights)
        self._backend = backend
        bound = [backend.prepare(layer) for layer in layers]
        self._sinc, self._sinc_pool, *convolutions = bound[:4]
        self._convolutions: list[BoundLayer] = convolutions
        self._lstm = bound[4 : 4 + _LSTM_LAYERS]
        self._dense = bound[4 + _LSTM_LAYERS :]
        self._local = threading.local()

    def classes(self, samples: np.ndarray, num_windows: int, step_samples: int) -> np.ndarray:
        """Most probable class of each frame, the lowest of equals.

        Parameters
        ----------
        samples
            (num_samples,) float32 at 16 kHz; window i covers samples[i * step_samples :][:160000].
        num_windows
            Windows to compute.
        step_samples
            Distance between window starts, a multiple of 10.

        Returns
        -------
        np.ndarray
            (num_windows, 589) uint8.

        Raises
        ------
        OptionError
            `samples` is too short or the step does not fit.
        """
        out = np.empty((num_windows, FRAMES_PER_WINDOW), np.uint8)
        for first, logits in self._logits(samples, num_windows, step_samples):
            out[first : first + logits.shape[1]] = logits.argmax(axis=2).T
        return out

    def scores(self, samples: np.ndarray, num_windows: int, step_samples: int) -> np.ndarray:
        """Natural logarithms of the class probabilities, (num_windows, 589, 7) float32; arguments as in `classes`."""
        out = np.empty((num_windows, FRAMES_PER_WINDOW, NUM_CLASSES), np.float32)
        for first, logits in self._logits(samples, num_windows, step_samples):
            logits = logits.transpose(1, 0, 2)
            shifted = logits - logits.max(axis=2, keepdims=True)
            out[first : first + len(logits)] = shifted - np.log(np.exp(shifted).sum(axis=2, keepdims=True))
        return out

    def _logits(self, samples: np.ndarray, num_windows: int, step_samples: int) -> Iterator[tuple[int, np.ndarray]]:
        """First window and (589, windows, 7) float32 scores of one group of windows after another."""
        if num_windows < 1 or step_samples < _SINC_STRIDE or step_samples % _SINC_STRIDE:
            raise OptionError(
                f"{num_windows} windows every {step_samples} samples; "
                f"give at least one window and a step that is a positive multiple of {_SINC_STRIDE}"
            )
        needed = (num_windows - 1) * step_samples + WINDOW_SAMPLES
        if samples.ndim != 1 or samples.size < needed:
            raise OptionError(f"samples have shape {samples.shape}; {num_windows} windows need one row of {needed}")
        samples = np.ascontiguousarray(samples, np.float32)
        for first in range(0, num_windows, GROUP_WINDOWS):
            count = min(GROUP_WINDOWS, num_windows - first)
            group = samples[first * step_samples :][: (count - 1) * step_samples + WINDOW_SAMPLES]
            filtered = self._filter(group, count, step_samples // _SINC_STRIDE, continues=first > 0)
            yield first, self._group(group, filtered, count, step_samples)

    def _filter(self, group: np.ndarray, count: int, step_positions: int, continues: bool) -> Buffer:
        """Sinc filter outputs of a group; where it continues another, those that both need are taken from there."""
        longest = (GROUP_WINDOWS - 1) * step_positions + _SINC_POSITIONS
        filtered = self._space("filtered", longest, _SINC_FILTERS)
        common = max(0, _SINC_POSITIONS - step_positions) if continues else 0
        if common:
            filtered[:common] = filtered[longest - common :]
        filtered = filtered[: (count - 1) * step_positions + _SINC_POSITIONS]
        self._sinc([group[common * _SINC_STRIDE :]], [filtered[common:]])
        return filtered

    def _group(self, group: np.ndarray, filtered: Buffer, count: int, step_samples: int) -> np.ndarray:
        """Scores (589, count, 7) float32 of one group of windows."""
        pooled = self._space("pooled", _POOLED_TIMES, _SINC_FILTERS)
        middle = self._space("middle", _CONV1_TIMES, _CHANNELS)
        narrow = self._space("narrow", FRAMES_PER_WINDOW, _CHANNELS)
        features = self._space("features", FRAMES_PER_WINDOW, count, _CHANNELS)
        for window in range(count):
            start = window * step_samples
            self._sinc_pool([group[start : start + WINDOW_SAMPLES], filtered[start // _SINC_STRIDE :]], [pooled])
            self._convolutions[0]([pooled], [middle])
            self._convolutions[1]([middle], [narrow])
            features[:, window] = narrow
        for index, layer in enumerate(self._lstm):
            sequence = self._space(f"sequence{index % 2}", FRAMES_PER_WINDOW, count, _LSTM_SIZE)
            layer([features], [sequence])
            features = sequence
        rows = features.reshape(-1, _LSTM_SIZE)
        for index, (layer, size) in enumerate(zip(self._dense, (_DENSE_SIZE, _DENSE_SIZE, NUM_CLASSES), strict=True)):
            out = self._space(f"dense{index}", len(rows), size)
            layer([rows], [out])
            rows = out
        return self._backend.get(rows).reshape(FRAMES_PER_WINDOW, count, NUM_CLASSES)

    def _space(self, name: str, *shape: int) -> Buffer:
        """This thread's buffer `name`, float32, grown where it is too small; its contents stay until it grows."""
        buffers = self._local.__dict__
        size = int(np.prod(shape))
        if name not in buffers or buffers[name].size < size:
            buffers[name] = self._backend.put(np.empty(size, np.float32))
        return buffers[name][:size].reshape(shape)
