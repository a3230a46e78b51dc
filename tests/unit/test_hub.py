"""Fetching community-1: from a server on loopback that stands in for the hub, and from a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tools.community_files import TOKEN, community_hub, embedding_bytes, original_folder
from tools.hub_server import Hub, serve
from tools.random_resnet34 import random_resnet34

from diarize.errors import ModelError
from diarize.model.folder import read_description, read_folder
from diarize.model.hub import (
    EMBEDDING_REPOSITORY,
    EMBEDDING_REVISION,
    PIPELINE_REPOSITORY,
    PIPELINE_REVISION,
    pull_community,
)

PLDA_NAME = "plda/plda.npz"
INSTALLED = ["community-1", "community-1/model.json", "community-1/weights.safetensors"]


@pytest.fixture
def hub(shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that holds community-1, and a home without stored tokens."""
    import huggingface_hub.constants
    import huggingface_hub.file_download

    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 2)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # Waiting between attempts is not what is tested.
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda _: None)
    with serve(community_hub(shared / "models" / "plda")) as server:
        yield server


def left_over(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_pull_converts_what_the_hub_has(hub: Hub, tmp_path: Path, shared: Path) -> None:
    target = tmp_path / "cache" / "models" / "community-1"
    digest = pull_community(target, TOKEN, endpoint=hub.endpoint)
    model = read_folder(target, "community-1", "")
    expected = random_resnet34(0, prefix="")
    assert all(np.array_equal(model.embedding[name], expected[name]) for name in model.embedding)
    with np.load(shared / "models" / "plda" / "plda.npz") as plda:
        assert np.array_equal(model.plda["psi"], plda["psi"])
        assert np.array_equal(model.plda["tr"], plda["tr"])
    assert left_over(target.parent) == INSTALLED
    description = read_description(target, "")
    assert description.sha256 == digest
    assert [source["part"] for source in description.sources] == ["plda", "plda", "embedding"]
    assert description.sources[2]["origin"] == (
        f"{hub.endpoint}/{EMBEDDING_REPOSITORY}/resolve/{EMBEDDING_REVISION}/pytorch_model.bin"
    )


def test_token_goes_to_the_gated_repository_only(hub: Hub, tmp_path: Path) -> None:
    pull_community(tmp_path / "model", TOKEN, endpoint=hub.endpoint)
    assert hub.tokens == {PIPELINE_REPOSITORY: {TOKEN}, EMBEDDING_REPOSITORY: {""}}


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_missing_or_wrong_token_says_what_to_do(hub: Hub, tmp_path: Path, token: str | None) -> None:
    with pytest.raises(ModelError) as caught:
        pull_community(tmp_path / "models" / "community-1", token, endpoint=hub.endpoint)
    assert str(caught.value) == (
        "plda/xvec_transform.npz of pyannote/speaker-diarization-community-1 cannot be downloaded: access denied; "
        "accept the conditions at https://huggingface.co/pyannote/speaker-diarization-community-1, "
        "then pass a token (--token or HF_TOKEN)"
    )
    assert left_over(tmp_path / "models") == []
    # Nothing large is fetched before the token is known to be good.
    assert EMBEDDING_REPOSITORY not in hub.tokens


def test_wrong_plda_is_refused(hub: Hub, tmp_path: Path) -> None:
    key = (PIPELINE_REPOSITORY, PIPELINE_REVISION, PLDA_NAME)
    hub.files[key] = hub.files[key][:-1] + b"\x01"
    with pytest.raises(ModelError, match=r"plda\.npz has sha256 [0-9a-f]{12}\.\.\., expected 9b77bcd84069\.\.\.; run:"):
        pull_community(tmp_path / "models" / "community-1", TOKEN, endpoint=hub.endpoint)
    assert left_over(tmp_path / "models") == []


def test_other_embedding_network_is_used_with_a_warning(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "diarize"):
        pull_community(tmp_path / "model", TOKEN, endpoint=hub.endpoint)
    assert [record.getMessage()[:63] for record in caplog.records if record.name == "diarize.model.community"] == [
        "pytorch_model.bin is not the published embedding network (sha25"
    ]


def test_missing_file_names_the_revision(hub: Hub, tmp_path: Path) -> None:
    del hub.files[EMBEDDING_REPOSITORY, EMBEDDING_REVISION, "pytorch_model.bin"]
    with pytest.raises(
        ModelError, match=f"pytorch_model.bin of {EMBEDDING_REPOSITORY} .*revision {EMBEDDING_REVISION}"
    ):
        pull_community(tmp_path / "model", TOKEN, endpoint=hub.endpoint)


def test_cut_connection_leaves_the_installed_model_alone(hub: Hub, tmp_path: Path) -> None:
    target = tmp_path / "models" / "community-1"
    pull_community(target, TOKEN, endpoint=hub.endpoint)
    before = {path: path.read_bytes() for path in target.iterdir()}
    hub.cut = "pytorch_model.bin"
    with pytest.raises(
        ModelError, match=r"pytorch_model\.bin of .* cannot be downloaded \(.*use --from DIR$"
    ) as caught:
        pull_community(target, TOKEN, endpoint=hub.endpoint)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in target.iterdir()} == before
    assert left_over(tmp_path / "models") == INSTALLED
    # Each attempt after the first went on from what was there.
    starts = hub.starts["pytorch_model.bin"][1:]
    assert starts[0] == 0
    assert len(starts) > 2
    assert all(start > 0 for start in starts[1:])


def test_unreachable_hub_is_one_line(tmp_path: Path, hub: Hub) -> None:
    # Port 9 of the loopback device: nobody listens.
    with pytest.raises(ModelError, match="the hub cannot be reached; go online") as caught:
        pull_community(tmp_path / "model", TOKEN, endpoint="http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


def test_offline_mode_is_respected(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="unset HF_HUB_OFFLINE"):
        pull_community(tmp_path / "model", TOKEN, endpoint=hub.endpoint)
    assert hub.requests == []


def test_folder_needs_no_network(shared: Path, tmp_path: Path) -> None:
    source = original_folder(tmp_path / "clone", shared / "models" / "plda")
    pull_community(tmp_path / "model", source=source, endpoint="http://127.0.0.1:9")
    model = read_folder(tmp_path / "model", "model", "")
    assert np.array_equal(model.embedding["seg_1.bias"], random_resnet34(0)["resnet.seg_1.bias"])


def test_folder_and_hub_give_the_same_weights(hub: Hub, shared: Path, tmp_path: Path) -> None:
    source = original_folder(tmp_path / "clone", shared / "models" / "plda")
    local = pull_community(tmp_path / "a", source=source)
    assert local == pull_community(tmp_path / "b", TOKEN, endpoint=hub.endpoint)


def test_incomplete_folders_are_explained(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none is not a folder"):
        pull_community(tmp_path / "model", source=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"holds no embedding network; put it at .*empty/embedding/pytorch_model\.bin"):
        pull_community(tmp_path / "model", source=tmp_path / "empty")
    source = original_folder(tmp_path / "clone", shared / "models" / "plda")
    (source / "plda" / "plda.npz").unlink()
    with pytest.raises(ModelError, match=r"clone/plda/plda\.npz is missing"):
        pull_community(tmp_path / "model", source=source)
    assert not (tmp_path / "model").exists()


def test_damaged_checkpoint_in_a_folder_is_named(shared: Path, tmp_path: Path) -> None:
    source = original_folder(tmp_path / "clone", shared / "models" / "plda")
    (source / "embedding" / "pytorch_model.bin").write_bytes(embedding_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"clone/embedding/pytorch_model\.bin is damaged .*; mend the files in"):
        pull_community(tmp_path / "model", source=source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ModelError, match=r"cannot be written .*; set DIARIZE_CACHE"):
        pull_community(tmp_path / "models" / "community-1", TOKEN)


def test_cache_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(ModelError, match=r"models cannot be written .*; set DIARIZE_CACHE to a writable folder"):
        pull_community(tmp_path / "models" / "community-1", TOKEN)
