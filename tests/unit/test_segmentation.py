"""Segmentation network: captured results, an independent reference, and the same bytes for a window anywhere."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from diarize.backend.cpu import CpuBackend
from diarize.errors import ModelError, OptionError
from diarize.framing import WINDOW_SAMPLES
from diarize.model.segmentation import GROUP_WINDOWS, SegmentationNetwork, segmentation_layers
from diarize.model.weights import load_segmentation

# Powerset classes in the order of the network's outputs.
SPEAKERS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
CLIPS = ("02_pyannote_sample", "03_dual_speaker", "04_three_speaker", "05_four_speaker")


@pytest.fixture(scope="module")
def network():
    return SegmentationNetwork(load_segmentation(), CpuBackend())


@pytest.fixture(scope="module")
def samples():
    """Half a minute of modulated noise with gaps: not speech, but it visits several classes."""
    rng = np.random.default_rng(7)
    time = np.arange(32 * 16_000) / 16_000
    tone = sum(np.sin(2 * np.pi * 140 * k * time + rng.uniform(0, 6)) / k for k in range(1, 20))
    envelope = np.clip(np.sin(2 * np.pi * 0.23 * time) + 0.7 * np.sin(2 * np.pi * 3.1 * time), 0, None)
    return (0.05 * tone * envelope + 0.002 * rng.standard_normal(time.size)).astype(np.float32)


def needed(num_windows, step):
    return (num_windows - 1) * step + WINDOW_SAMPLES


def reference(weights, windows):
    """Log-probabilities (B, 589, 7) in float64, built from torch's own layers."""
    torch = pytest.importorskip("torch")
    # Its threads spin while they wait, which is slow on a shared or pinned core.
    torch.set_num_threads(1)
    f = torch.nn.functional
    w = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}

    def norm(x, name):
        return f.instance_norm(x, weight=w[f"{name}.weight"], bias=w[f"{name}.bias"])

    x = norm(torch.tensor(windows, dtype=torch.float64)[:, None], "wav_norm")
    x = f.conv1d(x, w["conv0.weight"], stride=10).abs()
    x = f.leaky_relu(norm(f.max_pool1d(x, 3), "norm0"))
    for index in (1, 2):
        x = f.conv1d(x, w[f"conv{index}.weight"], w[f"conv{index}.bias"])
        x = f.leaky_relu(norm(f.max_pool1d(x, 3), f"norm{index}"))
    lstm = torch.nn.LSTM(60, 128, 4, bidirectional=True, batch_first=True).double()
    lstm.load_state_dict({name.removeprefix("lstm."): array for name, array in w.items() if name.startswith("lstm.")})
    with torch.no_grad():
        x, _ = lstm(x.transpose(1, 2))
    for name in ("lin0", "lin1"):
        x = f.leaky_relu(f.linear(x, w[f"{name}.weight"], w[f"{name}.bias"]))
    return f.log_softmax(f.linear(x, w["cls.weight"], w["cls.bias"]), dim=-1).numpy()


@pytest.mark.parametrize("clip", CLIPS)
def test_captured_segmentations(network, shared, clip):
    soundfile = pytest.importorskip("soundfile")
    samples, _ = soundfile.read(shared / "fixtures" / clip / "clip_16k.flac", dtype="float32")
    captured = np.load(shared / "fixtures" / clip / "segmentations.npz")["segmentations"]
    samples = np.pad(samples, (0, max(0, needed(len(captured), 16_000) - samples.size)))
    scores = network.scores(samples, len(captured), 16_000)
    differs = (SPEAKERS[scores.argmax(axis=2)] != captured).any(axis=2)
    scores.sort(axis=2)
    # Where the two best classes are closer than float32 roundings through eleven layers, either is right.
    assert not (differs & (scores[..., -1] - scores[..., -2] >= 1e-3)).any()
    assert differs.sum() <= 2


def test_scores_equal_an_independent_reference(network, samples):
    weights = load_segmentation()
    first, last = samples[:WINDOW_SAMPLES], samples[-WINDOW_SAMPLES:]
    # Ordinary, on a constant, quiet on a large constant, and silence.
    windows = np.stack([last, first + 0.25, 0.01 * last + 0.5, np.zeros(WINDOW_SAMPLES)]).astype(np.float32)
    got = np.stack([network.scores(window, 1, 16_000)[0] for window in windows])
    # Scores of unlikely classes reach -30, from a network that is float32 throughout: hence a relative part.
    np.testing.assert_allclose(got, reference(weights, windows), rtol=3e-5, atol=1e-4)


def test_random_weights_equal_an_independent_reference(samples):
    # The trained network saturates; random weights that keep the scale of the signal show errors that it would hide.
    rng = np.random.default_rng(8)
    weights = load_segmentation()
    for name, array in weights.items():
        noise = rng.standard_normal(array.shape)
        if array.ndim > 1 and name != "conv0.weight":
            weights[name] = noise / np.sqrt(array[0].size) * (3 if name == "cls.weight" else 1)
        elif array.ndim == 1:
            weights[name] = 0.1 * noise + ("norm" in name and "weight" in name)
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    window = samples[:WINDOW_SAMPLES]
    got = SegmentationNetwork(weights, CpuBackend()).scores(window, 1, 16_000)
    expected = reference(weights, window[None])
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_scores_are_log_probabilities_of_the_classes(network, samples):
    scores = network.scores(samples, 3, 16_000)
    assert scores.shape == (3, 589, 7)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(np.exp(scores.astype(np.float64)).sum(axis=2), 1, rtol=0, atol=1e-6)
    classes = network.classes(samples, 3, 16_000)
    assert classes.shape == (3, 589)
    assert classes.dtype == np.uint8
    np.testing.assert_array_equal(classes, scores.argmax(axis=2))
    assert len(np.unique(classes)) > 1


def test_equal_scores_give_the_lowest_class(samples):
    weights = load_segmentation()
    weights = weights | {
        "cls.weight": np.zeros((7, 128), np.float32),
        "cls.bias": np.array([0, 1, 1, 0, 1, 0, 0.5], np.float32),
    }
    classes = SegmentationNetwork(weights, CpuBackend()).classes(samples, 1, 16_000)
    assert (classes == 1).all()


@pytest.mark.parametrize("step", [16_000, 9_990])
def test_a_window_gives_the_same_bytes_anywhere(network, samples, step):
    count = GROUP_WINDOWS + 2
    together = network.scores(samples, count, step)
    for first, part in ((0, 1), (1, 5), (GROUP_WINDOWS - 1, 2), (count - 1, 1)):
        alone = network.scores(samples[first * step :][: needed(part, step)].copy(), part, step)
        assert alone.tobytes() == together[first : first + part].tobytes()


def test_windows_that_hardly_or_do_not_overlap(network, samples):
    for step in (159_000, 170_000):
        both = network.scores(samples, 2, step)
        alone = network.scores(samples[step:], 1, 16_000)
        assert alone.tobytes() == both[1:].tobytes()


def test_two_threads_give_the_same_bytes(network, samples):
    starts = (0, 48_000, 16_000, 90_010)
    alone = [network.scores(samples[start:], 3, 16_000) for start in starts]
    together = [None] * len(starts)

    def work(index):
        together[index] = network.scores(samples[starts[index] :], 3, 16_000)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(starts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a.tobytes() for a in alone] == [b.tobytes() for b in together]


@pytest.mark.parametrize(
    ("size", "count", "step", "message"),
    [
        (WINDOW_SAMPLES - 1, 1, 16_000, r"samples have shape \(159999,\); 1 windows need one row of 160000"),
        (WINDOW_SAMPLES + 15_999, 2, 16_000, "2 windows need one row of 176000"),
        (WINDOW_SAMPLES, 0, 16_000, "0 windows every 16000 samples; give at least one window"),
        (WINDOW_SAMPLES * 2, 2, 15, "a step that is a positive multiple of 10"),
        (WINDOW_SAMPLES, 1, 0, "a step that is a positive multiple of 10"),
    ],
)
def test_wrong_arguments_are_refused(network, size, count, step, message):
    with pytest.raises(OptionError, match=message):
        network.classes(np.zeros(size, np.float32), count, step)


def test_missing_tensor_is_named():
    weights = load_segmentation()
    del weights["conv2.bias"]
    with pytest.raises(ModelError, match=r"lack the tensor 'conv2\.bias'"):
        segmentation_layers(weights)
