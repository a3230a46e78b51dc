"""Restricted reader of PyTorch checkpoints (`.bin`, `.pt`, `.ckpt`): gives tensors and runs nothing from the file.

A checkpoint is a zip archive with a pickle, `*/data.pkl`, and one stored member per tensor storage, `*/data/KEY`.
A pickle is a small program that may name any function of any installed package and call it. This reader looks names up
in two fixed tables instead of importing them: the few that rebuild tensors, and those that training leaves beside the
tensors (hyper-parameters, version strings), which become inert objects that accept everything and keep nothing. Any
other name, any operation that such a file does not need, and any tensor that reaches outside its storage is an error.
Checkpoints in the format from before PyTorch 1.6 (no zip archive) are refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..errors import ModelError

# The largest real file is 27 MB with a pickle of 30 kB; a file beyond these limits is none of ours.
MAX_FILE_BYTES = 1 << 30
MAX_PICKLE_BYTES = 4 << 20
MAX_TENSORS = 10_000
MAX_REUSED_TUPLES = 20

_DTYPES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    # numpy has no bfloat16: read as bits, widened in `_Tensor.array`.
    "BFloat16Storage": np.dtype("<u2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}

_TYPES = ("bool", "bytearray", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")

# What training frameworks store beside the tensors in pyannote's and WeSpeaker's files.
_INERT = frozenset(
    (module, name)
    for module, names in {
        "_codecs": ("encode",),
        # The second name of the same module is Python 2's, which pickle protocol 2 writes.
        "builtins": (*_TYPES, "getattr"),
        "__builtin__": (*_TYPES, "getattr"),
        "collections": ("defaultdict",),
        "numpy": ("dtype", "ndarray"),
        "numpy.core.multiarray": ("_reconstruct", "scalar"),
        "numpy._core.multiarray": ("_reconstruct", "scalar"),
        "omegaconf.base": ("ContainerMetadata", "Metadata"),
        "omegaconf.dictconfig": ("DictConfig",),
        "omegaconf.listconfig": ("ListConfig",),
        "omegaconf.nodes": ("AnyNode", "BooleanNode", "FloatNode", "IntegerNode", "StringNode"),
        "pathlib": ("PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"),
        "pyannote.audio.core.model": ("Introspection", "Output"),
        "pyannote.audio.core.task": ("Problem", "Resolution", "Scale", "Specifications"),
        "pytorch_lightning.callbacks.early_stopping": ("EarlyStopping",),
        "pytorch_lightning.callbacks.model_checkpoint": ("ModelCheckpoint",),
        "pytorch_lightning.utilities.parsing": ("AttributeDict",),
        "torch": ("Size", "device"),
        "torch.torch_version": ("TorchVersion",),
        "typing": ("Any",),
    }.items()
    for name in names
)

# Protocol 2 to 4 as PyTorch writes it; what is missing calls by other routes or loads foreign extensions.
_OPCODES = frozenset(
    name
    for line in (
        "PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT",
        "BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES",
        "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_SET",
        "ADDITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID",
    )
    for name in line.split()
)


class _Inert:
    """Stands for an object that is not needed: takes any argument, item or state, and keeps none."""

    __slots__ = ()

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> _Inert:
        return self

    def __setstate__(self, _: object) -> None:
        pass

    def __setitem__(self, _: object, __: object) -> None:
        pass

    def append(self, _: object) -> None:
        """Take an item and drop it."""

    def extend(self, _: object) -> None:
        """Take items and drop them."""

    add = append


class _Sealed:
    """Base of what a pickle may hold of ours: its state was checked once and cannot be replaced."""

    def __setstate__(self, _: object) -> None:
        _refuse("its pickle changes an object after it was made")


@dataclass(frozen=True)
class _StorageType(_Sealed):
    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _Storage(_Sealed):
    kind: _StorageType
    key: str
    num_elements: int


@dataclass(frozen=True)
class _Rebuild(_Sealed):
    """A function that the pickle may call; wrapped, since a bare function's attributes can be set."""

    function: Callable[..., _Tensor]

    def __call__(self, *arguments: object) -> _Tensor:
        return self.function(*arguments)


@dataclass(frozen=True)
class _Tensor(_Sealed):
    """A tensor that is described but not read yet; offset and strides count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, data: bytes) -> np.ndarray:
        flat = np.frombuffer(data, self.storage.kind.dtype, self.storage.num_elements)
        steps = tuple(stride * flat.itemsize for stride in self.strides)
        # Safe: `_rebuild_tensor` has checked that the last element lies inside the storage.
        view = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps, writeable=False)
        array = np.ascontiguousarray(view).reshape(self.shape)
        if self.storage.kind.name == "BFloat16Storage":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


class _Unpickler(pickle.Unpickler):
    """Looks every name up in the fixed tables; imports nothing."""

    def __init__(self, data: bytes, members: Mapping[str, zipfile.ZipInfo], prefix: str) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._members = members
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Rebuild(_rebuild_tensor)
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _Rebuild(_rebuild_parameter)
        if module == "torch" and name in _DTYPES:
            return _StorageType(name, _DTYPES[name])
        if (module, name) in _INERT:
            return _Inert
        _refuse(f"it asks for {module}.{name}, which is not needed for weights (a .safetensors file is read too)")

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            _refuse("it refers to something that is not a tensor storage")
        _, kind, key, _, num_elements = pid
        if not isinstance(kind, _StorageType) or not isinstance(key, str) or not _is_count(num_elements):
            _refuse("a tensor storage is described wrongly")
        member = self._members.get(f"{self._prefix}data/{key}")
        if member is None:
            _refuse(f"tensor storage {key!r} is missing")
        if member.file_size != num_elements * kind.dtype.itemsize:
            _refuse(f"tensor storage {key!r} has {member.file_size} bytes for {num_elements} elements")
        return _Storage(kind, key, num_elements)


def read_checkpoint(data: bytes, source: str, remedy: str) -> dict[str, np.ndarray]:
    """Tensors by name from the bytes of a PyTorch checkpoint; bfloat16 becomes float32, other types stay.

    The tensors are those of the mapping under `state_dict`, where there is one, else of the top-level mapping.
    `source` names the file and `remedy` says what the user can do: both end up in the message.

    Raises
    ------
    ModelError
        The bytes are no such checkpoint, are damaged, or contain anything that is not needed for weights.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ModelError(f"{source} has {len(data)} bytes, at most {MAX_FILE_BYTES} are read; {remedy}")
    _check_format(data, source, remedy)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_archive(archive, len(data))
    except _RefusedError as error:
        raise ModelError(f"{source} is refused: {error}; {remedy}") from error
    # Whatever a damaged archive or pickle makes the standard library raise.
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OSError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ModelError(f"{source} is damaged ({type(error).__name__}: {error}); {remedy}") from error


class _RefusedError(Exception):
    """The file holds something that this reader does not accept."""


def _refuse(reason: str) -> NoReturn:
    raise _RefusedError(reason)


def _check_format(data: bytes, source: str, remedy: str) -> None:
    """Refuse files that are no zip archive, with a word on what they probably are."""
    if data[:4] == b"PK\x03\x04":
        return
    if data.startswith(b"version https://git-lfs"):
        raise ModelError(f"{source} is a Git LFS pointer, not the weights; run git lfs pull in its folder")
    if data[:1] == b"\x80":
        raise ModelError(
            f"{source} is a PyTorch file from before version 1.6 or a bare pickle; "
            "load it with PyTorch, save it again with torch.save or as safetensors"
        )
    raise ModelError(f"{source} is no PyTorch checkpoint (it starts with {data[:4]!r}); {remedy}")


def _read_archive(archive: zipfile.ZipFile, num_bytes: int) -> dict[str, np.ndarray]:
    members = {member.filename: member for member in archive.infolist()}
    pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1 or len(members) != len(archive.infolist()):
        _refuse(f"it holds {len(pickles)} files named data.pkl among {len(members)}, expected 1")
    for member in members.values():
        # PyTorch stores members as they are; a compressed one could unpack to any size.
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > num_bytes:
            _refuse(f"member {member.filename!r} is compressed or larger than the file")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}byteorder" in members and archive.read(f"{prefix}byteorder") != b"little":
        _refuse("its byte order is not little-endian")
    if members[pickles[0]].file_size > MAX_PICKLE_BYTES:
        _refuse(f"its pickle has {members[pickles[0]].file_size} bytes, at most {MAX_PICKLE_BYTES} are read")
    program = archive.read(pickles[0])
    _check_opcodes(program)
    content = _Unpickler(program, members, prefix).load()
    tensors = _named_tensors(content)
    if len(tensors) > MAX_TENSORS:
        _refuse(f"it holds {len(tensors)} tensors, at most {MAX_TENSORS} are read")
    # Several tensors may share a storage: the sum is checked before anything is read.
    total = sum(math.prod(tensor.shape) * tensor.storage.kind.dtype.itemsize for tensor in tensors.values())
    if total > 2 * num_bytes:
        _refuse(f"its tensors would take {total} bytes, the file has {num_bytes}")
    return {name: tensor.array(archive.read(f"{prefix}data/{tensor.storage.key}")) for name, tensor in tensors.items()}


def _check_opcodes(program: bytes) -> None:
    """Refuse operations that weights do not need, and programs that are small but cost much memory or time."""
    tuples: set[object] = set()
    previous, num_reused, num_stored = "", 0, 0
    for opcode, argument, _ in pickletools.genops(program):
        if opcode.name not in _OPCODES:
            _refuse(f"its pickle uses the operation {opcode.name}, which is not needed for weights")
        if opcode.name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            number = num_stored if argument is None else argument
            num_stored += 1
            # The memo is a plain array: one large number makes the reader allocate all of it.
            if not isinstance(number, int) or number > len(program):
                _refuse("its pickle numbers an object beyond its own size")
            if previous.startswith("TUPLE"):
                tuples.add(number)
        # A tuple that holds an earlier one twice, and so on n times, takes 2^n steps to hash.
        num_reused += opcode.name in ("BINGET", "LONG_BINGET") and argument in tuples
        if num_reused > MAX_REUSED_TUPLES:
            _refuse(f"its pickle reuses more than {MAX_REUSED_TUPLES} tuples")
        previous = opcode.name


def _named_tensors(content: object) -> dict[str, _Tensor]:
    # `dict.get(content)`, not `content.get`: a pickle can give an OrderedDict attributes of these names.
    if isinstance(content, dict) and isinstance(dict.get(content, "state_dict"), dict):
        content = dict.get(content, "state_dict")
    if not isinstance(content, dict):
        _refuse("it holds no mapping of tensors")
    tensors = {key: value for key, value in dict.items(content) if isinstance(key, str) and isinstance(value, _Tensor)}
    if not tensors:
        _refuse("it holds no named tensor")
    return tensors


def _rebuild_tensor(storage: object, offset: object, shape: object, strides: object, *_: object) -> _Tensor:
    """A tensor's description, checked against its storage; further arguments concern gradients and are dropped."""
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        _refuse("a tensor is described wrongly")
    if len(shape) != len(strides) or len(shape) > 8 or not all(_is_count(n) for n in (offset, *shape, *strides)):
        _refuse(f"a tensor has shape {shape!r} and strides {strides!r}; both must be counts")
    assert isinstance(offset, int)
    num_elements = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if num_elements > storage.num_elements or (num_elements and last >= storage.num_elements):
        _refuse(f"a tensor of shape {shape} reaches outside its storage of {storage.num_elements} elements")
    return _Tensor(storage, offset if num_elements else 0, shape, strides)


def _rebuild_parameter(tensor: object, *_: object) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        _refuse("a parameter is described wrongly")
    return tensor


def _is_count(value: object) -> bool:
    """Whether `value` is an integer from 0 to 2^40, large enough for any storage and small enough for products."""
    return type(value) is int and 0 <= value < 1 << 40


def read_tensors(path: Path, remedy: str) -> tuple[dict[str, np.ndarray], bytes]:
    """Tensors by name from a `.safetensors` file or a checkpoint, and the bytes that were read.

    Raises
    ------
    ModelError
        The file is missing, damaged or refused.
    """
    from .tensorfile import parse_tensors

    try:
        # Asked first, so that a huge file is not read into memory.
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are read; {remedy}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
    parse = parse_tensors if path.suffix == ".safetensors" else read_checkpoint
    return parse(data, str(path), remedy), data
