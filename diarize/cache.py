"""Where compiled CPU code is kept, and what makes it stale.

numba keeps a compiled function for as long as the function's own file stays as it is. But what a function calls, and
the constants that it reads, are compiled into it from other files too: after an upgrade in place, old code could run.
So compiled code lies in a folder named by a hash of everything that it may be made of: all sources of its package, for
a module right in `diarize` that module alone, and the version. Compiled code never reaches beyond these; a test says
so. No folder is ever renewed, so processes of different versions do not disturb each other, and few are left behind.

numba also refuses to compile a cached function when it finds no place for it, as in a container with a read-only file
system. Then a folder of this user's below the system's temporary folder serves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from . import __version__

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent

# Those of other versions: one may be in use, or be returned to.
_KEPT = 2


def njit(**options: Any) -> Any:
    """numba's `njit` with these options; imports numba when called.

    With `cache` the compiled code is kept in `compiled_folder` of the function's file, if there is one and room in it.
    """
    from numba import njit as numba_njit
    from numba.core.caching import CacheImpl

    if _Locator not in CacheImpl._locator_classes:
        CacheImpl._locator_classes = [_Locator, *CacheImpl._locator_classes]

    def compiled(function: Callable[..., Any]) -> Any:
        own = dict(options)
        file = Path(os.path.abspath(function.__code__.co_filename))
        if own.get("cache") and _is_ours(file):
            try:
                compiled_folder(file)
            except OSError as error:
                # Without a folder of ours numba would choose one, and know less of what makes code stale.
                own["cache"] = False
                _say_once(str(error))
        dispatcher = numba_njit(**own)(function)
        _never_fail(dispatcher._cache)
        return dispatcher

    return compiled


def _never_fail(kept: Any) -> None:
    """Let numba's cache of a function go without what it cannot write: the function is compiled all the same."""
    save = kept.save_overload

    def save_if_possible(signature: Any, data: Any) -> None:
        try:
            save(signature, data)
        except OSError as error:
            _say_once(str(error))

    kept.save_overload = save_if_possible


@cache
def _say_once(reason: str) -> None:
    logger.warning("compiled code is not kept: %s; make room, or name another place with NUMBA_CACHE_DIR", reason)


def compiled_folder(file: Path) -> Path:
    """The folder in which the code compiled from `file`, a module of this package, is kept; it can be written.

    NUMBA_CACHE_DIR comes first, then the package, the user's cache folder (XDG), and a temporary folder. A
    NUMBA_CACHE_DIR that cannot be written is passed over with a warning.

    Raises
    ------
    OSError
        A source cannot be read, or no folder can be written.
    """
    from numba import config

    home = file.parent
    return _folder(file.stem if home == PACKAGE else home.name, home, config.CACHE_DIR)


def source_digest(name: str, home: Path) -> str:
    """Hash of what is compiled together: the module `name` right in `diarize`, or the package `name` in `home`."""
    digest = hashlib.sha256(__version__.encode())
    for path in [home / f"{name}.py"] if home == PACKAGE else sorted(home.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


class _Locator:
    """Tells numba where to keep a function of this package; has the methods of numba's own locators."""

    def __init__(self, folder: Path, file: str, line: int) -> None:
        self._folder = folder
        # numba reads this name for its warnings.
        self._py_file = file
        self._line = line

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        """The locator of a function, None for those that are not in files of this package."""
        file = Path(os.path.abspath(py_file))
        return cls(compiled_folder(file), py_file, py_func.__code__.co_firstlineno) if _is_ours(file) else None

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)


def _is_ours(file: Path) -> bool:
    """Whether `file` is a module of this package; in a zip archive there are none."""
    return PACKAGE in file.parents and file.is_file()


@cache
def _folder(name: str, home: Path, chosen: str) -> Path:
    """The folder for the sources `name` in `home`, made if need be; `chosen` is NUMBA_CACHE_DIR or empty."""
    own = f"{name}-{source_digest(name, home)}"
    # Installations elsewhere have other versions, whose folders are theirs to remove.
    place = f"diarize-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    if chosen:
        try:
            return _made(Path(chosen) / place, name, own)
        except OSError as error:
            _pass_over(chosen, str(error))
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # Without a home folder the tilde stays.
    others = [user / "diarize" / "compiled" / place] if user.is_absolute() else []
    for parent in (home / "__pycache__", *others):
        try:
            return _made(parent, name, own)
        except OSError:
            continue
    return _made(_temporary_folder() / place, name, own)


@cache
def _pass_over(chosen: str, reason: str) -> None:
    logger.warning("NUMBA_CACHE_DIR is %s, which cannot be used (%s): compiled code is kept elsewhere", chosen, reason)


def _made(parent: Path, name: str, own: str) -> Path:
    """The folder `own` in `parent`; when it is new, folders of older sources of the same name are removed."""
    folder = parent / own
    new = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    if new:
        older = [other for other in parent.glob(f"{name}-*") if other != folder]
        for other in sorted(older, key=_last_change)[:-_KEPT]:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _last_change(folder: Path) -> float:
    """When a file was last added to `folder`; 0 if another process has just removed it."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


@cache
def _temporary_folder() -> Path:
    """A folder that only this user can write, the same one in every process where that can be trusted."""
    folder = Path(tempfile.gettempdir()) / f"diarize-numba-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # Compiled code is run: a folder that somebody else made or may write to is not to be trusted.
    if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022):
        folder = Path(tempfile.mkdtemp(prefix="diarize-numba-"))
    # Here, so that it is said once and not for each part of the package.
    logger.warning(
        "compiled code is kept in %s, since neither the package nor the user's cache folder can be written; "
        "set NUMBA_CACHE_DIR to keep it elsewhere",
        folder,
    )
    return folder
