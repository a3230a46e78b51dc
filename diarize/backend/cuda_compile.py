"""Compiles kernels ahead of time, without a GPU: numba to PTX, an assembler to machine code, both kept on disk.

numba's own cache is not used: its key ignores constants in the code, in which two tile configurations may be all that
differs. The key here covers every kernel source, the configuration, the compilers' versions and the target.

PTX for GPUs before compute capability 8.0 is rewritten in between (`cuda_turing`).

Assemblers, in this order: `ptxas` of the `nvidia-cuda-nvcc` wheel, of CUDA_HOME, on the PATH; else nvJitLink. nvJitLink
compiles for later linking and then ignores setmaxnreg, so what it says this about stays PTX, which the driver
assembles.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackendError
from ..user_folders import cache_home, expanded
from .cuda_turing import lower, needs_lowering

if TYPE_CHECKING:
    from ..kernels.spec import Kernel

logger = logging.getLogger(__name__)

_MAGIC = b"DZKERN01"
_COMPILERS = ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvrtc")


@dataclass(frozen=True)
class Image:
    """A compiled kernel: `payload` is machine code if `assembled`, else PTX for the driver to assemble.

    `entry` is the function's name inside it. Register and spill counts come from the assembler, -1 where unknown.
    """

    name: str
    architecture: str
    entry: str
    assembled: bool
    payload: bytes
    registers: int = -1
    spilled_bytes: int = -1
    stack_bytes: int = -1
    notes: tuple[str, ...] = ()


def architecture(kernel: Kernel, capability: tuple[int, int]) -> str:
    """Assembler target, such as sm_80 or sm_90a.

    Raises
    ------
    BackendError
        The kernel does not run on this compute capability.
    """
    if not kernel.runs_on(capability):
        needs = ".".join(map(str, kernel.capability))
        raise BackendError(
            f"kernel {kernel.name} does not run on compute capability {capability[0]}.{capability[1]}: it needs "
            f"{'exactly' if kernel.architecture_specific else 'at least'} {needs}; choose a portable candidate"
        )
    return f"sm_{capability[0]}{capability[1]}{'a' if kernel.architecture_specific else ''}"


@cache
def source_digest() -> str:
    """Hash of every kernel source, of this module and the one that rewrites PTX, and of the compilers' versions."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    own = [package / "backend" / name for name in ("cuda_compile.py", "cuda_turing.py")]
    for path in [*sorted((package / "kernels").glob("*.py")), *own]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for distribution in _COMPILERS:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            version = "none"
        digest.update(f"{distribution}={version}\0".encode())
    return digest.hexdigest()


def cache_key(kernel: Kernel, target: str) -> str:
    """What tells this compiled kernel from every other: 24 hexadecimal digits."""
    shape = (kernel.name, kernel.arguments, kernel.threads, kernel.shared_bytes, kernel.min_blocks, target)
    return hashlib.sha256((source_digest() + repr(shape)).encode()).hexdigest()[:24]


def default_folder() -> Path:
    """DIARIZE_KERNEL_CACHE, else the user's cache folder (XDG)."""
    named = os.environ.get("DIARIZE_KERNEL_CACHE")
    if named:
        return expanded(named)
    return cache_home() / "diarize" / "kernels"


def compile_ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
    """PTX of a kernel, made by numba-cuda and NVVM, rewritten where the GPU is older; no GPU is touched.

    Raises
    ------
    BackendError
        numba-cuda is not installed, the kernel does not run on this compute capability, or it has an instruction that
        cannot be rewritten for it.
    """
    target = architecture(kernel, capability)
    try:
        from numba import cuda
        from numba.cuda import types
    except ImportError as error:
        raise BackendError(f"numba-cuda cannot be imported ({error}): install diarize-cuda[cuda]") from error
    pointer = types.CPointer
    letters = {
        "h": pointer(types.float16),
        "m": pointer(types.float16),
        "f": pointer(types.float32),
        "w": pointer(types.int32),
        "b": pointer(types.uint8),
        "i": types.int32,
        "s": types.float32,
    }
    signature = types.void(*[letters[letter] for letter in kernel.arguments])
    cc: tuple[Any, ...] = (*capability, "a") if target.endswith("a") else capability
    bounds = (kernel.threads, kernel.min_blocks)
    ptx, _ = cuda.compile(
        kernel.function, signature, device=False, abi="numba", cc=cc, output="ptx", launch_bounds=bounds
    )
    text = ptx if isinstance(ptx, str) else ptx.decode()
    return lower(text, kernel.name) if needs_lowering(capability) else text


@cache
def find_ptxas() -> str | None:
    """Path of a ptxas, None where there is none."""
    places = []
    wheel = importlib.util.find_spec("nvidia")
    for root in (wheel.submodule_search_locations or []) if wheel else []:
        places += [*sorted(Path(root).glob("cu*/bin/ptxas"), reverse=True), Path(root) / "cuda_nvcc" / "bin" / "ptxas"]
    if os.environ.get("CUDA_HOME"):
        places.append(Path(os.environ["CUDA_HOME"]) / "bin" / "ptxas")
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    return shutil.which("ptxas")


def _run_ptxas(ptxas: str, ptx: str, target: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="diarize-") as folder:
        source, output = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_text(ptx)
        command = [ptxas, "-v", "-O3", "-arch", target, str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            raise BackendError(
                f"the assembler rejects a kernel for {target}: {log.strip().splitlines()[:1]}; report this"
            )
        return output.read_bytes(), log


def _run_nvjitlink(ptx: str, target: str) -> tuple[bytes, str]:
    from cuda.bindings import nvjitlink

    data = ptx.encode()
    handle = nvjitlink.create(3, [f"-arch={target}", "-O3", "-verbose"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        return bytes(code), log.decode(errors="replace")
    finally:
        nvjitlink.destroy(handle)


def assemble(name: str, ptx: str, target: str) -> Image:
    """Machine code of PTX text, or the PTX itself where no assembler can do it without loss.

    Raises
    ------
    BackendError
        The assembler rejects the text.
    """
    match = re.search(r"\.entry\s+([\w$]+)", ptx)
    if match is None:
        raise BackendError(f"kernel {name} compiled to PTX without an entry point; report this")
    entry = match.group(1)
    ptxas = find_ptxas()
    if ptxas is not None:
        code, log = _run_ptxas(ptxas, ptx, target)
    else:
        try:
            code, log = _run_nvjitlink(ptx, target)
        except ImportError:
            return Image(name, target, entry, False, ptx.encode())
        if "C7504" in log:
            return Image(name, target, entry, False, ptx.encode(), notes=("assembled by the driver",))
    registers = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    stack, stores, loads = (int(v) for v in frame.groups()) if frame else (-1, 0, -1)
    notes = tuple(line.strip() for line in log.splitlines() if "warning" in line.lower() or "(C75" in line)
    return Image(name, target, entry, True, code, int(registers[1]) if registers else -1, stores + loads, stack, notes)


class KernelCache:
    """Compiled kernels on disk; a damaged or foreign file is compiled again."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def path(self, kernel: Kernel, capability: tuple[int, int]) -> Path:
        """Where the compiled form of `kernel` lies."""
        target = architecture(kernel, capability)
        return self.folder / target / f"{kernel.name[:160]}-{cache_key(kernel, target)}.kernel"

    def get(self, kernel: Kernel, capability: tuple[int, int]) -> Image:
        """The compiled kernel, from disk if it is there, else compiled now and written."""
        path = self.path(kernel, capability)
        image = read_image(path)
        if image is not None:
            return image
        logger.debug("compiling %s", path.stem)
        image = assemble(kernel.name, compile_ptx(kernel, capability), architecture(kernel, capability))
        try:
            write_image(path, image)
        except OSError as error:
            logger.warning("compiled kernels are not kept: cannot write %s (%s)", path.parent, error)
        return image


def write_image(path: Path, image: Image) -> None:
    """Write an image under a temporary name, then rename: a reader never sees half a file."""
    described = asdict(image)
    payload = described.pop("payload")
    header = json.dumps(described).encode()
    body = len(header).to_bytes(4, "little") + header + payload
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise


def read_image(path: Path) -> Image | None:
    """The image in a file; None if the file is absent or not a whole image."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MAGIC) + 32 :]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    size = int.from_bytes(body[:4], "little")
    described = json.loads(body[4 : 4 + size])
    described["notes"] = tuple(described["notes"])
    return Image(**described, payload=body[4 + size :])
