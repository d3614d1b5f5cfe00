"""The hub, through huggingface_hub, against a local server with its protocol and its faults."""

import hashlib
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_texts import digests, documents
from hub_server import Hub
from huggingface_hub.errors import LocalEntryNotFoundError

from forked import start_onecard
from onecard.data import open_dataset
from onecard.data.read.shard_files import header
from onecard.data.sources import network
from onecard.data.sources.hub import HubFile, _check_path, _wrong, fetch
from onecard.errors import RunFailure, UserError


def parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out, row_group_size=100)
    return out.getvalue()


def files(count: int = 5, each: int = 600) -> dict[str, bytes]:
    return {
        f"sample/10BT/{index:03d}_00000.parquet": parquet(documents(each, index))
        for index in range(count)
    }


@pytest.fixture
def hub():  # type: ignore[no-untyped-def]
    with Hub() as made:
        yield made


# waits between two attempts take a fiftieth of their time
IMPATIENT = """
import time, types
from onecard.data.sources import network
network.time = types.SimpleNamespace(sleep=lambda seconds, sleep=time.sleep: sleep(seconds / 50))
"""


def run(
    hub: Hub, tmp_path: Path, *words: str, home: str = "hf"
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    command = ("data", *words, "--workers", "1", "--json")
    process = start_onecard(*command, env=environment, cwd=tmp_path, first=IMPATIENT)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def done(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_only_the_files_that_the_tokens_need(hub: Hub, tmp_path: Path) -> None:
    commit = hub.commit(
        "HuggingFaceFW/fineweb-edu",
        {**files(), "README.md": b"x", "data/CC-MAIN/0.parquet": b"no"},
        {"license": "odc-by"},
    )
    found = done(run(hub, tmp_path, "fineweb-edu", "--tokens", "30000"))
    assert found["sources"] == [
        {
            "uri": "hf:HuggingFaceFW/fineweb-edu:sample-10BT",
            "revision": commit,
            "licence": "odc-by",
            "files": found["sources"][0]["files"],
            "state": None,
        }
    ]
    assert hub.downloads() == ["sample/10BT/000_00000.parquet"]
    assert 30_000 <= sum(split["tokens"] for split in found["splits"].values()) < 31_000
    assert open_dataset(tmp_path / "data" / "fineweb-edu").splits["train"].tokens > 25_000
    assert done(run(hub, tmp_path, "fineweb-edu", "--tokens", "30000")) == found
    assert hub.downloads() == ["sample/10BT/000_00000.parquet"]  # it is there already


def test_a_config_a_revision_and_all_files(hub: Hub, tmp_path: Path) -> None:
    card = {
        "license": "mit",
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": "a/*"}, {"split": "test", "path": "t/*"}],
            },
            {"config_name": "other", "data_files": "b/**"},
        ],
    }
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(40, 9)).encode()
    content = {
        "a/0.parquet": parquet(documents(50, 1)),
        "t/0.parquet": parquet(documents(5, 2)),
        "b/x/0.jsonl": lines,
    }
    first = hub.commit("me/set", content, card)
    hub.commit("me/set", {**content, "a/0.parquet": parquet(documents(60, 3))}, card)
    found = done(run(hub, tmp_path, f"hf:me/set@{first}", "--out", "one"))
    assert sum(split["documents"] for split in found["splits"].values()) == 50
    assert found["sources"][0]["revision"] == first
    found = done(run(hub, tmp_path, "hf:me/set", "--out", "two"))
    assert sum(split["documents"] for split in found["splits"].values()) == 60
    found = done(run(hub, tmp_path, "hf:me/set:other", "--out", "three"))
    assert sum(split["documents"] for split in found["splits"].values()) == 40
    result = run(hub, tmp_path, "hf:me/set:none")
    assert (result.returncode, "it has default, other" in result.stderr) == (2, True)


def test_a_connection_cut_in_the_middle_is_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    out = io.BytesIO()
    padding = np.random.default_rng(0).bytes(
        25_000_000
    )  # huggingface_hub keeps what came in steps of 10 MiB
    pq.write_table(
        pa.table(
            {
                "text": documents(20, 1),
                "padding": [padding[: 1_250_000 * 20][i::20] for i in range(20)],
            }
        ),
        out,
    )
    content = out.getvalue()
    hub.commit("me/set", {"data/0.parquet": content})
    cuts = iter(["cut", "cut"])
    hub.fault = lambda method, path: (
        next(cuts, None) if method == "GET" and path.startswith("/store/") else None
    )
    found = done(run(hub, tmp_path, "hf:me/set"))
    assert sum(split["documents"] for split in found["splits"].values()) == 20
    assert len(hub.downloads()) == 3
    assert hub.sent < 1.5 * len(content)  # begun again twice it would be twice


def test_429_and_503_are_waited_out(hub: Hub, tmp_path: Path) -> None:
    hub.commit("me/set", {"data/0.parquet": parquet(documents(50, 1))})
    seen: dict[str, int] = {}

    def busy(method: str, path: str) -> int | None:
        key = f"{method} {path.split('/')[1]}"
        seen[key] = seen.get(key, 0) + 1
        return {1: 429, 2: 503}.get(seen[key])

    hub.fault = busy
    found = done(run(hub, tmp_path, "hf:me/set"))
    assert sum(split["documents"] for split in found["splits"].values()) == 50
    assert max(seen.values()) >= 3


def test_a_wrong_length_is_an_error_and_the_same_command_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.commit("me/set", {"data/0.parquet": parquet(documents(50, 1))})
    hub.fault = lambda method, path: (
        "short" if method == "GET" and path.startswith("/store/") else None
    )
    result = run(hub, tmp_path, "hf:me/set")
    assert result.returncode == 1
    assert "the download failed" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "data" / "set" / "manifest.json").exists()
    hub.fault = lambda method, path: None
    assert done(run(hub, tmp_path, "hf:me/set"))["splits"]["train"]["documents"] > 30


def test_a_file_that_changes_upstream(hub: Hub, tmp_path: Path) -> None:
    """A begun set stays with the commit it began with; content that is not what the listing says is refused."""
    hub.commit("me/set", files(3))
    plain = done(run(hub, tmp_path, "hf:me/set", "--out", "plain", "--name", "x"))
    second = hashlib.sha256(files(3)["sample/10BT/001_00000.parquet"]).hexdigest()
    kept = hub.blobs[second]
    hub.blobs[second] = kept[:-8] + b"tampered"  # the same length, other bytes
    result = run(hub, tmp_path, "hf:me/set", "--out", "changed", "--name", "x", home="hf2")
    assert (result.returncode, "sha256 is not the listing's" in result.stderr) == (1, True), (
        result.stderr
    )
    hub.blobs[second] = kept
    hub.commit(
        "me/set", {"sample/10BT/000_00000.parquet": parquet(documents(10, 77))}
    )  # main moves on
    again = done(run(hub, tmp_path, "hf:me/set", "--out", "changed", "--name", "x", home="hf2"))
    assert again["sources"] == plain["sources"]
    one, two = digests(tmp_path / "plain"), digests(tmp_path / "changed")
    for manifest in (one, two):
        manifest.pop("manifest.json")
    assert one == two


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    hub.commit("me/set", {"readme.md": b"x"})
    for word, message in (
        ("hf:me/none", "does not know me/none"),
        ("hf:me/set@abc", "does not know me/set"),
        ("hf:me/set", "no parquet, jsonl"),
    ):
        result = run(hub, tmp_path, word)
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr
    assert not list((tmp_path / "data").iterdir())


def test_no_network_at_all(tmp_path: Path) -> None:
    class Nowhere:
        url = "http://127.0.0.1:9"

    result = run(Nowhere(), tmp_path, "hf:me/set")  # type: ignore[arg-type]
    assert (result.returncode, "cannot be reached" in result.stderr) == (1, True), result.stderr


def test_ready_shards(hub: Hub, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = {}
    for index in range(4):
        ids = rng.integers(0, 50257, 1000).astype("<u2")
        ids[::100] = 50256
        content[f"fineweb_{'train' if index else 'val'}_{index:06d}.bin"] = (
            header(1000) + ids.tobytes()
        )
    hub.commit("kjj0/fineweb10B-gpt2", content)
    found = done(run(hub, tmp_path, "kjj0/fineweb10B-gpt2", "--tokens", "1500"))
    assert hub.downloads() == [
        "fineweb_val_000000.bin",
        "fineweb_train_000001.bin",
        "fineweb_train_000002.bin",
    ]
    assert found["splits"]["train"]["tokens"] == 2000
    assert found["splits"]["val"]["documents"] >= 10
    data = open_dataset(tmp_path / "data" / "fineweb10B-gpt2")
    assert (data.path / "fineweb_train_000001.bin").read_bytes() == content[
        "fineweb_train_000001.bin"
    ]
    assert data.bytes_per_token
    assert not data.splits["train"].verify()
    content["fineweb_train_000001.bin"] = header(3) + np.array([1, 50257, 2], "<u2").tobytes()
    hub.commit("kjj0/fineweb10B-gpt2", content)
    result = run(hub, tmp_path, "kjj0/fineweb10B-gpt2", "--out", "bad")
    assert result.returncode == 1
    assert "token id 50257" in result.stderr


def test_a_file_that_was_checked_is_not_read_again(tmp_path: Path) -> None:
    path, mark = tmp_path / "file", tmp_path / "marks" / "file"
    path.write_bytes(b"text")
    file = HubFile("file", 4, hashlib.sha256(b"text").hexdigest())
    assert _wrong(path, file, mark) is None
    path.write_bytes(b"tixt")
    assert _wrong(path, file, mark) is None  # by its mark
    assert _wrong(path, file, None) == "its sha256 is not the listing's"
    assert _wrong(path, HubFile("file", 5, None), mark) == "4 bytes came, the listing says 5"
    assert _wrong(path, HubFile("file", 4, None), None) is None


@pytest.mark.parametrize("path", ["/etc/passwd", "a\\b.parquet", "../up.parquet", "a/../b", "a\0b"])
def test_a_listing_cannot_name_files_outside_its_repository(path: str) -> None:
    with pytest.raises(UserError, match="lists a file outside of itself"):
        _check_path("owner/name", path)
    _check_path("owner/name", "sample/10BT/..000.parquet")


def test_a_download_that_fails_says_whether_anything_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_args: object, **_named: object) -> str:
        raise LocalEntryNotFoundError("the connection is cut")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", cut)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(network.time, "sleep", lambda _seconds: None)
    file = HubFile("a.parquet", 4, "ab" * 32)
    with pytest.raises(RunFailure) as nothing:
        fetch("owner/name", "c" * 40, file)
    assert nothing.value.hint == "run the same command again later"
    blobs = tmp_path / "datasets--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{file.sha256}.1234.incomplete").write_bytes(b"te")
    with pytest.raises(RunFailure) as some:
        fetch("owner/name", "c" * 40, file)
    assert some.value.hint == "what arrived is kept: the same command continues"
