"""The restricted reader: reads what PyTorch writes, runs nothing, refuses everything else in one line."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.torch_zip import Call, Global, archive, checkpoint, pickle_bytes, tensor

from diarize.errors import ModelError
from diarize.model.checkpoint import MAX_FILE_BYTES, read_checkpoint, read_tensors

FLOATS = np.arange(6, dtype=np.float32)


def read(data: bytes) -> dict[str, np.ndarray]:
    return read_checkpoint(data, "model.bin", "get it again")


def with_tensor(*arguments: Any, data: bytes = FLOATS.tobytes()) -> bytes:
    return archive(pickle_bytes(OrderedDict(x=tensor("FloatStorage", "0", *arguments))), {"0": data})


def with_object(content: Any) -> bytes:
    """A checkpoint that holds a good tensor and, beside it, `content`."""
    good = tensor("FloatStorage", "0", 6, 0, (6,), (1,))
    return archive(pickle_bytes({"state_dict": {"x": good}, "extra": content}), {"0": FLOATS.tobytes()})


@pytest.mark.parametrize("lightning", [False, True])
def test_tensors_come_back_as_written(lightning: bool) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {
        "a.weight": rng.standard_normal((4, 3, 2)).astype(np.float32),
        "b": rng.standard_normal(5),
        "half": rng.standard_normal((2, 2)).astype(np.float16),
        "count": np.array(7, np.int64),
    }
    result = read(checkpoint(tensors, lightning))
    assert list(result) == list(tensors)
    for name, expected in tensors.items():
        assert result[name].dtype == expected.dtype
        assert np.array_equal(result[name], expected)
        assert result[name].shape == expected.shape


def test_transposed_and_sliced_views_are_followed() -> None:
    assert np.array_equal(read(with_tensor(6, 0, (3, 2), (1, 3)))["x"], FLOATS.reshape(2, 3).T)
    assert np.array_equal(read(with_tensor(6, 2, (2, 2), (2, 1)))["x"], [[2, 3], [4, 5]])
    assert read(with_tensor(6, 6, (0, 3), (3, 1)))["x"].shape == (0, 3)


def test_bfloat16_is_widened() -> None:
    bits = (FLOATS.view(np.uint32) >> 16).astype("<u2")
    data = archive(pickle_bytes({"x": tensor("BFloat16Storage", "0", 6, 0, (6,), (1,))}), {"0": bits.tobytes()})
    result = read(data)["x"]
    assert result.dtype == np.float32
    assert np.array_equal(result, FLOATS)


class Attack:
    """Pickles as a call that would leave a file behind."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["system", "eval", "exec", "open", "getattr"])
def test_malicious_pickle_does_not_run(tmp_path: Path, name: str, protocol: int) -> None:
    import os

    mark = tmp_path / "executed"
    attack = {
        "system": Attack(os.system, f"touch {mark}"),
        "eval": Attack(eval, f"__import__('pathlib').Path({str(mark)!r}).touch()"),
        "exec": Attack(exec, f"open({str(mark)!r}, 'w')"),
        "open": Attack(open, str(mark), "w"),
        # An allowed name, applied to a forbidden one.
        "getattr": Attack(getattr, os, "system"),
    }[name]
    program = b""
    if name == "getattr":
        # A module cannot be pickled; written by hand: getattr(os.system, "__call__")(command).
        inner = Call(Global("builtins", "getattr"), Global("posix", "system"), "__call__")
        program = pickle_bytes({"x": inner})
    else:
        program = pickle.dumps({"x": attack}, protocol)
        # The pickle does what it says when nothing holds it back: the test can fail.
        pickle.loads(program)
        assert mark.exists()
        mark.unlink()
    with pytest.raises(ModelError, match=r"^model.bin is refused: it(s pickle uses the operation| asks for) .*get it"):
        read(archive(program, {}))
    assert not mark.exists()


def test_attack_nested_in_a_harmless_object_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    inner = Call(Global("posix", "system"), f"touch {mark}")
    for content in (
        Call(Global("pyannote.audio.core.task", "Specifications"), inner),
        Call(Global("pyannote.audio.core.task", "Specifications"), state={"problem": inner}),
        Call(Global("collections", "OrderedDict"), [("key", inner)]),
        Call(Global("torch._utils", "_rebuild_parameter"), inner, False, None),
        Call(Global("collections", "defaultdict"), Global("subprocess", "Popen")),
    ):
        with pytest.raises(ModelError, match=r"asks for (posix\.system|subprocess\.Popen), which is not needed"):
            read(with_object(content))
    assert not mark.exists()


def test_inert_objects_keep_nothing_and_do_nothing(tmp_path: Path) -> None:
    # `eval` through an inert getattr: every call gives another inert object.
    mark = tmp_path / "executed"
    looked_up = Call(Global("builtins", "getattr"), Global("builtins", "dict"), "fromkeys")
    called: Any = Call(looked_up, f"open({str(mark)!r}, 'w')")  # type: ignore[arg-type]
    assert list(read(with_object(called))) == ["x"]
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        ("builtins", "eval"),
        ("builtins", "__import__"),
        ("os", "system"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch.storage", "_load_from_bytes"),
        ("numpy", "load"),
        ("diarize.model.checkpoint", "_Unpickler"),
    ],
)
def test_only_listed_names_are_accepted(name: tuple[str, str]) -> None:
    with pytest.raises(ModelError, match="which is not needed for weights"):
        read(with_object(Global(*name)))


def test_tensor_cannot_be_changed_after_it_was_checked() -> None:
    good = tensor("FloatStorage", "0", 6, 0, (6,), (1,))
    good.state = {"shape": (1 << 30,), "offset": 1 << 30}
    program = pickle_bytes({"x": good})
    with pytest.raises(ModelError, match="changes an object after it was made"):
        read(archive(program, {"0": FLOATS.tobytes()}))


def test_function_that_rebuilds_tensors_cannot_be_changed() -> None:
    # BUILD with a pair sets attributes; on a plain function that would outlive the read.
    program = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x04\x00\x00\x00evilK\x01s\x86b."
    with pytest.raises(ModelError, match="changes an object after it was made"):
        read(archive(program, {}))


@pytest.mark.parametrize(
    ("num_elements", "offset", "shape", "strides"),
    [
        (6, 0, (7,), (1,)),
        (6, 1, (6,), (1,)),
        (6, 0, (2, 3), (4, 1)),
        (6, -1, (3,), (1,)),
        (6, 5, (3,), (-1,)),
        (6, 0, (1 << 40,), (0,)),
        (6, 0, (1 << 60, 1 << 60), (1, 1)),
        (6, 0, (-1, -6), (1, 1)),
        (6, 0, (6,), (1, 1)),
        (6, 0, (6.0,), (1,)),
        (6, 0, (True,), (1,)),
        (6, 0, [6], [1]),
        (6, 0, (1,) * 9, (1,) * 9),
        (7, 0, (6,), (1,)),
        (-6, 0, (6,), (1,)),
        (1 << 50, 0, (6,), (1,)),
        ("6", 0, (6,), (1,)),
    ],
)
def test_tensor_outside_its_storage_is_refused(num_elements: Any, offset: Any, shape: Any, strides: Any) -> None:
    with pytest.raises(ModelError, match=r"model\.bin is refused: "):
        read(with_tensor(num_elements, offset, shape, strides))


def test_many_tensors_on_one_storage_are_refused() -> None:
    big = np.zeros(100_000, np.float32).tobytes()
    # New tuples each time, as PyTorch makes them.
    views = [np.empty(100_000, np.int8) for _ in range(50)]
    content = {
        f"x{i}": tensor("FloatStorage", "0", 100_000, 0, view.shape, view.strides) for i, view in enumerate(views)
    }
    with pytest.raises(ModelError, match="its tensors would take 20000000 bytes"):
        read(archive(pickle_bytes(content), {"0": big}))


def test_compressed_members_are_refused() -> None:
    bomb = archive(
        pickle_bytes({"x": tensor("FloatStorage", "0", 1 << 22, 0, (1 << 22,), (1,))}),
        {"0": bytes(1 << 24)},
        zipfile.ZIP_DEFLATED,
    )
    assert len(bomb) < 100_000
    with pytest.raises(ModelError, match="is compressed or larger than the file"):
        read(bomb)


def test_huge_memo_number_is_refused() -> None:
    # LONG_BINPUT 0x7fffffff would make the reader allocate 16 GiB.
    with pytest.raises(ModelError, match="numbers an object beyond its own size"):
        read(archive(b"\x80\x02}r\xff\xff\xff\x7f.", {}))


def test_tuples_that_take_forever_to_hash_are_refused() -> None:
    # Each TUPLE2 holds the tuple before it twice; as a key, the last one would take 2^60 steps.
    doubled = b"".join(b"q%ch%c\x86" % (number, number) for number in range(60))
    with pytest.raises(ModelError, match="its pickle reuses more than 20 tuples"):
        read(archive(b"\x80\x02})" + doubled + b"K\x01s.", {}))


def test_classes_of_the_training_framework_are_read_as_python_pickles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import enum
    import sys
    import types

    module = types.ModuleType("pyannote.audio.core.task")

    class Problem(enum.Enum):
        MONO_LABEL = 1

    class Specifications:
        def __init__(self) -> None:
            self.problem, self.duration, self.classes = Problem.MONO_LABEL, 10.0, ["a", "b"]

    for kind in (Problem, Specifications):
        kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
        setattr(module, kind.__name__, kind)
    for depth in range(1, 5):
        name = ".".join(module.__name__.split(".")[:depth])
        monkeypatch.setitem(sys.modules, name, module if depth == 4 else types.ModuleType(name))
    assert "Specifications" in repr(pickle.loads(pickle.dumps(Specifications(), 2)))
    data = with_object({"specifications": Specifications(), "problems": [Problem.MONO_LABEL], "set": {Problem(1)}})
    assert np.array_equal(read(data)["x"], FLOATS)


def test_other_byte_order_is_refused() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", pickle_bytes({}))
        file.writestr("archive/byteorder", b"big")
    with pytest.raises(ModelError, match="byte order is not little-endian"):
        read(stream.getvalue())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "from before version 1.6 or a bare pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer.*run git lfs pull"),
        (b"<html>not found</html>", "is no PyTorch checkpoint"),
        (b"", "is no PyTorch checkpoint"),
        (b"PK\x03\x04" + bytes(100), "is damaged"),
        (archive(b"", {}), "is damaged"),
        (archive(b"garbage", {}), "is (damaged|refused)"),
        (archive(pickle_bytes([1, 2]), {}), "holds no mapping of tensors"),
        (archive(pickle_bytes({"a": 1}), {}), "holds no named tensor"),
        (archive(pickle_bytes({"x": tensor("FloatStorage", "9", 6, 0, (6,), (1,))}), {}), "storage '9' is missing"),
        (archive(pickle_bytes({"x": tensor("ComplexStorage", "0", 6, 0, (6,), (1,))}), {}), "torch.ComplexStorage"),
    ],
)
def test_other_files_give_one_clear_line(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_every_truncation_and_flipped_byte_is_either_read_right_or_refused() -> None:
    good = with_tensor(6, 0, (2, 3), (3, 1))
    for length in range(len(good)):
        with pytest.raises(ModelError):
            read(good[:length])
    rng = np.random.default_rng(0)
    refused = 0
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= int(rng.integers(1, 256))
        try:
            result = read(bytes(damaged))
        except ModelError:
            refused += 1
        else:
            assert all(array.size <= 6 for array in result.values())
    # Flips in time stamps and the like do not matter; those in the pickle and the data are found by the archive's CRC.
    assert refused > len(good) // 2


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ModelError, match=f"{MAX_FILE_BYTES + 1} bytes, at most {MAX_FILE_BYTES}"):
        read_tensors(path, "get it again")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.bin cannot be read \(No such file"):
        read_tensors(tmp_path / "none.bin", "get it again")


def test_files_of_pytorch_itself_are_read_alike() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(8, 6, generator=generator)
    state = {
        "plain": base,
        "transposed": base.t(),
        "sliced": base[1:5, 2:],
        "parameter": torch.nn.Parameter(base * 2),
        "half": base.half(),
        "double": base.double(),
        "bfloat": base.bfloat16(),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 3),
    }
    content = {
        "state_dict": OrderedDict(state),
        "hyper_parameters": {"sizes": torch.Size([1, 2]), "device": torch.device("cpu"), "score": np.float64(0.5)},
        "pyannote.audio": {"versions": {"torch": torch.__version__}},
    }
    stream = io.BytesIO()
    torch.save(content, stream)
    result = read(stream.getvalue())
    assert list(result) == list(state)
    # A module's mapping has an attribute of its own, `_metadata`.
    layer = torch.nn.BatchNorm2d(4)
    stream = io.BytesIO()
    torch.save(layer.state_dict(), stream)
    assert list(read(stream.getvalue())) == list(layer.state_dict())
    for name, expected in state.items():
        array = expected.detach().float().numpy() if name == "bfloat" else expected.detach().numpy()
        assert result[name].dtype == array.dtype
        assert result[name].shape == array.shape
        assert np.array_equal(result[name], array)


def test_old_format_of_pytorch_is_refused() -> None:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save({"x": torch.zeros(3)}, stream, _use_new_zipfile_serialization=False)
    with pytest.raises(ModelError, match=r"from before version 1\.6"):
        read(stream.getvalue())
