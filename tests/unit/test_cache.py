"""Compiled code finds a place wherever the package lies, and is never used once anything that it is made of changes."""

from __future__ import annotations

import ast
import importlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_origin

import pytest

from diarize import cache

ROOT = Path(__file__).resolve().parents[2]
COMPILED = sorted(
    path.relative_to(ROOT / "diarize")
    for path in (ROOT / "diarize").rglob("*.py")
    if "import njit" in path.read_text() and path.name != "cache.py" and "kernels" not in path.parts
)

# Prints what the function gives, and how often it was compiled.
RUN = """
import json
from diarize.sums.caller import add_up
total = add_up(3)
print(json.dumps([total, sum(add_up.stats.cache_misses.values())]))
"""


@pytest.fixture(autouse=True)
def _as_in_new_processes() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """As a new process begins."""
    cache._folder.cache_clear()
    cache._temporary_folder.cache_clear()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package like ours with the real cache module, a compiled function, and a helper that is compiled into it."""
    package = tmp_path / "site" / "diarize"
    (package / "sums").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1"\n')
    (package / "sums" / "__init__.py").touch()
    shutil.copy(ROOT / "diarize" / "cache.py", package)
    (package / "sums" / "caller.py").write_text(
        "from ..cache import njit\n"
        "from .helper import times\n\n\n"
        "@njit(cache=True, nogil=True)\n"
        "def add_up(number):\n"
        "    return times(number) + 1\n"
    )
    write_helper(package, 10)
    return package


def write_helper(package: Path, factor: int) -> None:
    """Another constant in the helper, in a file of the same size and time."""
    helper = package / "sums" / "helper.py"
    helper.write_text(
        "from ..cache import njit\n\n"
        f"FACTOR = {factor}\n\n\n"
        "@njit(cache=True, nogil=True)\n"
        "def times(number):\n"
        "    return number * FACTOR\n"
    )
    os.utime(helper, (1e9, 1e9))
    # Python itself goes by time and size.
    for old in (package / "sums" / "__pycache__").glob("*.pyc"):
        old.unlink()


def run(package: Path, **variables: str) -> tuple[int, int]:
    """The function's value and the number of compilations, in a new process."""
    left_out = {"NUMBA_CACHE_DIR", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | variables
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent, env=environment, check=True)
    value, compilations = json.loads(done.stdout)
    return value, compilations


def folders(parent: Path, name: str = "sums") -> list[str]:
    return sorted(path.name for path in parent.rglob(f"{name}-*") if path.is_dir())


def test_a_changed_helper_changes_its_caller(package: Path) -> None:
    assert run(package) == (31, 1)
    assert run(package) == (31, 0)
    write_helper(package, 20)
    assert run(package) == (61, 1)
    # What was before is still there to return to.
    write_helper(package, 10)
    assert run(package) == (31, 0)


def test_a_new_version_compiles_again(package: Path) -> None:
    assert run(package) == (31, 1)
    (package / "__init__.py").write_text('__version__ = "2"\n')
    assert run(package) == (31, 1)


def test_a_changed_helper_where_the_user_keeps_compiled_code(package: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    assert run(package, NUMBA_CACHE_DIR=str(chosen)) == (31, 1)
    write_helper(package, 20)
    assert run(package, NUMBA_CACHE_DIR=str(chosen)) == (61, 1)
    assert run(package, NUMBA_CACHE_DIR=str(chosen)) == (61, 0)
    assert len(folders(chosen)) == 2
    assert folders(package) == []


def test_a_package_that_cannot_be_written(package: Path, tmp_path: Path) -> None:
    # A file where the folder should be also stops root, whom permissions do not.
    shutil.rmtree(package / "sums" / "__pycache__", ignore_errors=True)
    (package / "sums" / "__pycache__").touch()
    user = tmp_path / "user"
    assert run(package, XDG_CACHE_HOME=str(user)) == (31, 1)
    assert run(package, XDG_CACHE_HOME=str(user)) == (31, 0)
    assert len(folders(user / "diarize" / "compiled")) == 1


def test_two_processes_at_once(package: Path) -> None:
    # Both find nothing, compile, and keep it in the same files.
    command = [sys.executable, "-c", RUN]
    started = [subprocess.Popen(command, cwd=package.parent, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    values = [json.loads(process.communicate()[0])[0] for process in started]
    assert values == [31, 31]
    assert run(package) == (31, 0)


def test_few_old_folders_stay(tmp_path: Path) -> None:
    for age in range(6):
        cache._made(tmp_path, "cpu", f"cpu-{age}")
        os.utime(tmp_path / f"cpu-{age}", (1e9 + age, 1e9 + age))
    cache._made(tmp_path, "cluster", "cluster-0")
    assert folders(tmp_path, "cpu") == ["cpu-3", "cpu-4", "cpu-5"]
    # An older one that is used again is not new, so nothing else goes.
    cache._made(tmp_path, "cpu", "cpu-3")
    assert folders(tmp_path, "cpu") == ["cpu-3", "cpu-4", "cpu-5"]


@pytest.fixture
def nothing_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(temporary))
    made = cache._made

    def refuse(parent: Path, name: str, own: str) -> Path:
        if temporary not in parent.parents:
            raise PermissionError(parent)
        return made(parent, name, own)

    monkeypatch.setattr(cache, "_made", refuse)
    return temporary


def test_a_temporary_folder_of_this_user_serves(nothing_writable: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = cache.compiled_folder(ROOT / "diarize" / "cpu" / "gemm.py")
        cache.compiled_folder(ROOT / "diarize" / "cluster" / "heap.py")
    (top,) = nothing_writable.iterdir()
    assert top in chosen.parents
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert stat.S_IMODE(top.stat().st_mode) == 0o700
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_a_folder_that_others_may_write_is_not_trusted(nothing_writable: Path) -> None:
    cache.compiled_folder(ROOT / "diarize" / "cpu" / "gemm.py")
    (planted,) = nothing_writable.iterdir()
    planted.chmod(0o777)
    forget()
    chosen = cache.compiled_folder(ROOT / "diarize" / "cpu" / "gemm.py")
    assert planted not in chosen.parents
    (top,) = (folder for folder in nothing_writable.iterdir() if folder != planted)
    assert stat.S_IMODE(top.stat().st_mode) == 0o700


def test_a_full_disk_leaves_the_result(package: Path) -> None:
    code = (
        "import resource, signal, warnings\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from diarize.sums.caller import add_up\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "print(add_up(3), add_up(3.5))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent, check=False)
    assert (done.returncode, done.stdout) == (0, "31 36.0\n"), done.stderr
    assert done.stderr.count("compiled code is not kept: ") == 1
    # Nothing of it is taken for whole.
    assert run(package) == (31, 1)


def test_a_named_folder_that_cannot_be_used_is_passed_over(package: Path) -> None:
    def run_named() -> tuple[list[int], str]:
        command = [sys.executable, "-c", RUN]
        environment = {**os.environ, "NUMBA_CACHE_DIR": "/proc/nowhere"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent, check=False, env=environment)
        return json.loads(done.stdout), done.stderr

    assert run_named()[0] == [31, 1]
    again, warned = run_named()
    assert again == [31, 0]
    assert warned.count("NUMBA_CACHE_DIR is /proc/nowhere, which cannot be used (") == 1
    write_helper(package, 20)
    assert run_named()[0] == [61, 1]


def test_without_any_folder_nothing_is_kept(package: Path, tmp_path: Path) -> None:
    code = (
        "from diarize import cache\n"
        "def refuse(*where): raise PermissionError('nothing can be written')\n"
        "cache._made = refuse\n"
    )
    command = [sys.executable, "-c", code + RUN]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, cwd=package.parent, check=False, env=environment)
        assert (done.returncode, json.loads(done.stdout)) == (0, [31, 1]), done.stderr
        assert done.stderr.count("compiled code is not kept: nothing can be written") == 1
    assert not list(package.rglob("*.nb[ic]"))


def test_functions_of_others_are_left_to_numba() -> None:
    assert cache._Locator.from_function(json.dumps, json.__file__) is None


def test_compiled_functions_are_kept_in_our_folder() -> None:
    from diarize.cluster import heap

    assert Path(heap.sift_up.stats.cache_path) == cache.compiled_folder(Path(heap.__file__))


def taken(path: Path) -> list[tuple[Path, str, Any]]:
    """Module, name and value of all that a module of ours takes from others of ours, wherever in its text."""
    package = ".".join(["diarize", *path.parts[:-1]])
    found: list[tuple[Path, str, Any]] = []
    for node in ast.walk(ast.parse((ROOT / "diarize" / path).read_text())):
        assert not (isinstance(node, ast.Import) and any(alias.name.startswith("diarize") for alias in node.names))
        if isinstance(node, ast.ImportFrom) and node.level:
            module = importlib.import_module("." * node.level + (node.module or ""), package)
            assert module.__file__ is not None
            file = Path(module.__file__).relative_to(ROOT / "diarize")
            found += [(file, alias.name, getattr(module, alias.name)) for alias in node.names]
    return found


@pytest.mark.parametrize("path", COMPILED, ids=str)
def test_all_that_compiled_code_is_made_of_is_hashed(path: Path) -> None:
    # Compiled code may use constants and compiled functions; neither may come from files that are not hashed with it.
    assert len(path.parts) <= 2
    waiting, seen = [path], {path}
    while waiting:
        for file, name, value in taken(waiting.pop()):
            if len(path.parts) == 2 and file.parent == path.parent:
                waiting += {file} - seen
                seen.add(file)
                continue
            harmless = isinstance(value, type | types.FunctionType) or get_origin(value) is not None
            assert harmless, f"{path}: {name}"
            assert not (isinstance(value, type) and issubclass(value, Enum)), f"{path}: {name}"


def test_compiled_modules_are_found_and_what_they_take() -> None:
    assert {str(path.parent) for path in COMPILED} == {".", "cluster", "cpu"}
    names = {name for _, name, _ in taken(Path("cluster/search.py"))}
    assert {"njit", "sift_up", "BLOCK"} <= names


def test_only_the_cache_takes_njit_from_numba() -> None:
    taking = [
        path
        for path in (ROOT / "diarize").rglob("*.py")
        if "kernels" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "numba" and any("jit" in a.name for a in node.names)
    ]
    assert [path.name for path in taking] == ["cache.py"]
