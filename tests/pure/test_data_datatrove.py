"""The datatrove steps give the same tokens in the same format, whatever the number of tasks."""

import json
from collections import Counter
from pathlib import Path

import pytest
from data_texts import digests, documents, documents_in, write_parquet

from onecard.data import open_dataset, prepare
from onecard.errors import UserError

pytest.importorskip("datatrove")
pytestmark = pytest.mark.filterwarnings("default")  # datatrove's own dependencies warn


def make(source: Path, out: Path, logs: Path, tasks: int) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader

    from onecard.data.preparation.datatrove_step import MakeShards, TokenizeToParts

    first = LocalPipelineExecutor(
        [ParquetReader(str(source)), TokenizeToParts(str(out), val_fraction=0.1)],
        tasks=tasks,
        workers=1,
        logging_dir=str(logs / "1"),
    )
    LocalPipelineExecutor(
        [MakeShards(str(out), name="set", shard_tokens=4000, val_fraction=0.1)],
        tasks=1,
        workers=1,
        logging_dir=str(logs / "2"),
        depends=first,
    ).run()


def test_the_same_tokens_and_format(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for index in range(3):
        write_parquet(
            source / f"{index}.parquet",
            documents(60, index),
            id=[f"{index}-{n}" for n in range(60)],
        )
    make(source, tmp_path / "a" / "set", tmp_path / "logs-a", tasks=1)
    make(source, tmp_path / "b" / "set", tmp_path / "logs-b", tasks=3)
    assert digests(tmp_path / "a" / "set") == digests(tmp_path / "b" / "set")
    ours = prepare([str(source)], tmp_path / "ours", workers=1, val_fraction=0.1)
    for split in ("train", "val"):  # the split is by text alone, so it is the same too
        mine, theirs = (
            documents_in(tmp_path / "ours", split),
            documents_in(tmp_path / "a" / "set", split),
        )
        assert Counter(map(tuple, mine)) == Counter(map(tuple, theirs))
    data = open_dataset(tmp_path / "a" / "set")
    assert not data.splits["train"].verify()
    assert data.bytes_per_token == ours.bytes_per_token
    assert (
        json.loads((tmp_path / "a" / "set" / "manifest.json").read_text())["schema"]
        == "onecard.data/1"
    )


def test_a_missing_task_is_noticed(tmp_path: Path) -> None:
    from datatrove.data import Document

    from onecard.data.preparation.datatrove_step import MakeShards, TokenizeToParts

    TokenizeToParts(str(tmp_path)).run([Document("some text", "1")], rank=0, world_size=2)
    with pytest.raises(UserError, match="1 tasks of the first step have finished, not all"):
        MakeShards(str(tmp_path)).run()
    assert not (tmp_path / "manifest.json").exists()
