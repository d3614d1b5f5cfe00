"""Files that unpack without end, and lines without one."""

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from onecard.data.sources.documents import batches, units_of
from onecard.data.sources.local_files import input_of
from onecard.data.sources.unit import Reading, Unit


def test_a_small_dictionary_does_not_fill_the_memory(tmp_path: Path) -> None:
    """20,000 rows of one value of 4 MB: 80 GB of text in a file of some kilobytes."""
    value = pa.array(["x" * 4_000_000])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), value)
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"text": column}), path, compression="zstd", row_group_size=20_000)
    assert path.stat().st_size < 20_000
    assert_bounded(path, "unpacks to more than 1,000 times its size", tmp_path)


def test_a_parquet_page_of_gigabytes_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "page.parquet"
    table = pa.table({"text": ["y" * 280_000_000]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    del table
    assert path.stat().st_size < 100_000
    assert_bounded(path, "a page that unpacks to 267 MiB", tmp_path)


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_packed_bombs_and_endless_lines(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"bomb.jsonl.{kind}"
    zeros = bytes(16 * 2**20)
    if kind == "gz":
        content = gzip.compress(zeros, 9) * 20
    elif kind == "zst":
        content = zstandard.ZstdCompressor().compress(zeros) * 20
    else:
        content = lzma.compress(zeros) * 20
    path.write_bytes(content)
    assert_bounded(path, "unpacks to more", tmp_path)


def assert_bounded(path: Path, wanted: str, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from onecard.errors import OnecardError; from onecard.data import prepare\n"
        "try:\n"
        f"    prepare([{str(path)!r}], {str(tmp_path / 'out')!r}, workers=1, tokenizer='bytes')\n"
        "except OnecardError as error: print(error)\n"
        # the kernel counts what this process was before it began to run Python: the test's own memory
        "from pathlib import Path; status = Path('/proc/self/status')\n"
        "own = int(status.read_text().split('VmHWM:')[1].split()[0]) if status.exists() else "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    message, peak = done.stdout.strip().rsplit("\n", 1)
    assert wanted in message, message
    assert int(peak) * (1 if sys.platform == "darwin" else 1024) < 1_300_000_000, peak


def test_long_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.sources.jsonl_lines.MOST_LINE_BYTES", 1000)
    lines = [json.dumps({"text": t}) for t in ("one", "x" * 5000, "two", "y" * 982, "z" * 990)]
    content = "\n".join(lines).encode()
    (tmp_path / "x.jsonl").write_bytes(content)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("x.jsonl", "x.jsonl.gz"):
        path = tmp_path / name
        (unit,) = units_of([(0, input_of(path), path)], 10**6, 0, Reading())
        (batch,) = batches(unit, Reading())
        assert [len(text) for text in batch.texts] == [3, 3, 982]
        assert batch.skipped == {"line too long": 2}
    cut = [
        Unit(i, "jsonl", ((0, str(tmp_path / "x.jsonl")),), a, a + 700)
        for i, a in enumerate(range(0, len(content), 700))
    ]
    texts = [t for unit in cut for b in batches(unit, Reading()) for t in b.texts]
    assert [len(text) for text in texts] == [3, 3, 982]
