"""Downloads the original files of community-1 from the Hugging Face hub, once, and turns them into a model folder.

The embedding network lies in an open repository; the PLDA needs a user who has accepted the conditions of
pyannote/speaker-diarization-community-1, shown by an access token.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from ..errors import ModelError
from ..offline import offline
from .community import PLDA_SHA256, SourceFile, find_files, install

_log = logging.getLogger(__name__)

EMBEDDING_REPOSITORY = "pyannote/wespeaker-voxceleb-resnet34-LM"
EMBEDDING_REVISION = "837717ddb9ff5507820346191109dc79c958d614"
PIPELINE_REPOSITORY = "pyannote/speaker-diarization-community-1"
PIPELINE_REVISION = "3533c8cf8e369892e6b79ff1bf80f7b0286a54ee"

_PAGE = f"https://huggingface.co/{PIPELINE_REPOSITORY}"
_AGAIN = "run: diarize models pull community-1"


def pull_community(
    target: Path, token: str | None = None, source: Path | None = None, endpoint: str | None = None
) -> str:
    """Install community-1 as a model folder at `target` and give the sha256 of its weights.

    With `source`, a folder laid out as pyannote's repository, nothing is downloaded. `token` is a Hugging Face access
    token; None takes the one that `hf auth login` has stored. `endpoint` is the hub's address; None takes HF_ENDPOINT,
    else the public hub. An installed model stays as it is until the new one is complete.

    Raises
    ------
    ModelError
        A file cannot be downloaded, is not the published one, or cannot be converted or written; or a download is
        needed while DIARIZE_OFFLINE is set.
    """
    if source is not None:
        return install(find_files(source), target, f"mend the files in {source}")
    check_online()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, not in /tmp: there is room for the result, so there is for its sources.
        scratch = tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-")
    except OSError as error:
        message = f"{target.parent} cannot be written ({error.strerror or error})"
        raise ModelError(f"{message}; set DIARIZE_CACHE to a writable folder") from error
    with scratch as folder:
        # The gated files first: they are small, and a missing token shows before the large download.
        files = [
            _download(PIPELINE_REPOSITORY, PIPELINE_REVISION, f"plda/{name}", "plda", token, folder, endpoint)
            for name in PLDA_SHA256
        ]
        # No token for the open repository: a stale one would be refused where none is needed.
        name = "pytorch_model.bin"
        files.append(_download(EMBEDDING_REPOSITORY, EMBEDDING_REVISION, name, "embedding", False, folder, endpoint))
        return install(files, target, _AGAIN)


def check_online() -> None:
    """Nothing where community-1 may be downloaded.

    Raises
    ------
    ModelError
        DIARIZE_OFFLINE is set.
    """
    if offline():
        raise ModelError(
            "community-1 cannot be downloaded offline; leave out --offline and unset DIARIZE_OFFLINE, "
            "or convert a clone: diarize models pull community-1 --from DIR"
        )


def _download(
    repository: str,
    revision: str,
    name: str,
    part: str,
    token: str | bool | None,
    folder: str,
    endpoint: str | None,
) -> SourceFile:
    from huggingface_hub import hf_hub_download, hf_hub_url

    _log.info("downloading %s from %s at %s", name, repository, revision)
    try:
        path = hf_hub_download(repository, name, revision=revision, token=token, cache_dir=folder, endpoint=endpoint)
    # huggingface_hub has moved from one HTTP library to others, whose errors have no base in common.
    except Exception as error:
        raise ModelError(_explain(error, repository, revision, name)) from error
    return SourceFile(part, Path(path), hf_hub_url(repository, name, revision=revision, endpoint=endpoint))


def _explain(error: Exception, repository: str, revision: str, name: str) -> str:
    """One line for what went wrong in a download, with what the user can do."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = f"{name} of {repository} cannot be downloaded"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, LocalEntryNotFoundError):
        return f"{what}: the hub cannot be reached; go online and unset HF_HUB_OFFLINE, or use --from DIR"
    # A repository that one may not see answers as one that does not exist.
    if isinstance(error, (GatedRepoError, RepositoryNotFoundError)) or status in (401, 403):
        if repository == PIPELINE_REPOSITORY:
            return f"{what}: access denied; accept the conditions at {_PAGE}, then pass a token (--token or HF_TOKEN)"
        return f"{what}: access denied; get it another way and use --from DIR"
    if isinstance(error, (RevisionNotFoundError, EntryNotFoundError)):
        return f"{what}: revision {revision} does not have it; get it another way and use --from DIR"
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else "no reason given"
    return f"{what} ({type(error).__name__}: {reason}); {_AGAIN} again, or use --from DIR"
