"""Where compiled CPU code is kept when neither the package's folder nor the user's cache folder can be written.

numba refuses to compile a cached function when it finds no place for it, as in a container with a read-only file
system. Then a folder of this user's below the system's temporary folder serves.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)


def ensure_cache_folder(package: Path) -> None:
    """Give numba a folder for compiled code where its own places cannot be written; call before anything compiles.

    `package` is the folder of the modules that compile. A choice of the user's, NUMBA_CACHE_DIR, always stands.
    """
    # Asked first, since numba takes long to import and is not always needed.
    if _writable(package / "__pycache__"):
        return
    from numba import config

    if config.CACHE_DIR or _writable(_user_folder()):
        return
    config.CACHE_DIR = str(_temporary_folder())
    logger.warning(
        "compiled code is kept in %s, since neither the package nor the user's cache folder can be written; "
        "set NUMBA_CACHE_DIR to keep it elsewhere",
        config.CACHE_DIR,
    )


def _user_folder() -> Path:
    """numba's folder in the user's cache, as numba finds it."""
    from numba.misc.appdirs import AppDirs

    return Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)


def _writable(folder: Path) -> bool:
    """Whether files can be created in `folder`, or in a folder to be made there."""
    while not folder.exists():
        if folder == folder.parent:
            return False
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _temporary_folder() -> Path:
    """A folder that only this user can write, the same one in every process where that can be trusted."""
    folder = Path(tempfile.gettempdir()) / f"diarize-numba-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # Compiled code is run: a folder that somebody else made or may write to is not to be trusted.
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="diarize-numba-"))
