"""Writes PyTorch checkpoints without PyTorch: the zip layout and the pickle that `torch.save` makes."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

_STORAGES = {"<f4": "FloatStorage", "<f8": "DoubleStorage", "<f2": "HalfStorage", "<i8": "LongStorage"}


class Global:
    """A name that the pickle refers to by module and name, without being importable here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Call:
    """A call in the pickle: `function(*arguments)`, then optionally a state to build the result with."""

    def __init__(self, function: Global, *arguments: Any, state: Any = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state


class StorageKey:
    """A reference to a tensor storage: type, key, number of elements."""

    def __init__(self, kind: str, key: str, num_elements: Any) -> None:
        self.kind, self.key, self.num_elements = kind, key, num_elements


# Not in the type stubs.
_PurePickler: Any = pickle._Pickler  # type: ignore[attr-defined]


class _Pickler(_PurePickler):
    """The pure-Python pickler, so that names and calls can be written as they are in PyTorch's files."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, StorageKey):
            return ("storage", Global("torch", obj.kind), obj.key, "cpu", obj.num_elements)
        return None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
            if obj.state is not None:
                self.save(obj.state)
                self.write(pickle.BUILD)
        else:
            super().save(obj, save_persistent_id)


def tensor(kind: str, key: str, num_elements: Any, offset: Any, shape: Any, strides: Any) -> Call:
    """The pickled form of a tensor; any part may be wrong on purpose."""
    storage = StorageKey(kind, key, num_elements)
    function = Global("torch._utils", "_rebuild_tensor_v2")
    return Call(function, storage, offset, shape, strides, False, OrderedDict())


def pickle_bytes(content: Any) -> bytes:
    """The bytes of `data.pkl`, protocol 2 as PyTorch uses it."""
    stream = io.BytesIO()
    _Pickler(stream, 2).dump(content)
    return stream.getvalue()


def archive(program: bytes, storages: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A checkpoint from its pickle and its storages by key."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/byteorder", b"little")
        for key, data in storages.items():
            file.writestr(f"archive/data/{key}", data)
        file.writestr("archive/version", b"3\n")
    return stream.getvalue()


def checkpoint(tensors: Mapping[str, np.ndarray], lightning: bool = False) -> bytes:
    """A checkpoint with these tensors, flat or, as pyannote stores them, under `state_dict` beside leftovers."""
    state: OrderedDict[str, Any] = OrderedDict()
    storages = {}
    for index, (name, array) in enumerate(tensors.items()):
        array = np.ascontiguousarray(array).reshape(array.shape)
        strides = tuple(step // array.itemsize for step in array.strides)
        kind = _STORAGES[array.dtype.str]
        state[name] = tensor(kind, str(index), array.size, 0, tuple(array.shape), strides)
        storages[str(index)] = array.tobytes()
    content: Any = state
    if lightning:
        problem = Call(Global("pyannote.audio.core.task", "Problem"), 0)
        specifications = Call(
            Global("pyannote.audio.core.task", "Specifications"), state={"problem": problem, "duration": 10.0}
        )
        content = {
            "epoch": 12,
            "pytorch-lightning_version": "1.6.5",
            "state_dict": state,
            "hyper_parameters": {"sample_rate": 16000, "num_channels": 1},
            "pyannote.audio": {
                "versions": {"torch": Call(Global("torch.torch_version", "TorchVersion"), "1.13.1")},
                "architecture": {"module": "pyannote.audio.models.embedding.wespeaker", "class": "WeSpeakerResNet34"},
                "specifications": specifications,
            },
        }
    return archive(pickle_bytes(content), storages)
