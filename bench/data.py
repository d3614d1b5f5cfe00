"""`onecard data` beside nanoGPT's and llm.c's ways to tokenise, alternating, medians; scaling to two processes; memory.

python bench/data.py [--corpus ../shared/corpora/prose.parquet] [--rounds 3] [--scale-mb 1000]

The peers' methods are written here as their scripts do it (nanoGPT data/openwebtext/prepare.py: datasets.map with
tiktoken, then one memmap; llm.c dev/data/fineweb.py: a pool of tiktoken, imap by 16, one buffer per shard), fed the same
parquet and the same vocabulary. Start-up (imports, vocabulary, process start) is the same command on one document; it is
shown apart and taken off. MB/s per core is text over CPU seconds of all processes.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CORPUS = Path(__file__).parents[2] / "shared" / "corpora" / "prose.parquet"
COPIES = 3  # of the corpus for the comparison: 72 MB of text


def tiktoken_gpt2() -> Any:
    import tiktoken

    from onecard.data.tokenizers.bpe import gpt2

    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""  # tiktoken's own
    ranks = {piece: rank for rank, piece in enumerate(gpt2().pieces[:50256])}
    return tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


ENCODING: Any = None


def llmc_tokenize(document: dict[str, str]) -> np.ndarray:
    ids = np.array([50256, *ENCODING.encode_ordinary(document["text"])])
    assert (ids >= 0).all()
    assert (ids < 2**16).all()
    return ids.astype(np.uint16)


def as_llmc(source: str, out: str, processes: int) -> None:
    global ENCODING
    from datasets import load_dataset

    from onecard.data.read.shard_files import header

    ENCODING = tiktoken_gpt2()
    documents = load_dataset("parquet", data_files=source, split="train")
    buffer, count, number = np.empty(10**8, np.uint16), 0, 0

    def write(tokens: np.ndarray) -> None:
        path = Path(out) / f"fineweb_{'train' if number else 'val'}_{number:06d}.bin"
        path.write_bytes(
            header(len(tokens)) + np.array(tokens.tolist(), np.uint16).tobytes()
        )  # through a list, as there

    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for ids in pool.imap(llmc_tokenize, documents, chunksize=16):
            if count + len(ids) >= len(buffer):
                write(buffer[:count])
                count, number = 0, number + 1
            buffer[count : count + len(ids)] = ids
            count += len(ids)
    write(buffer[:count])


def nanogpt_process(example: dict[str, str]) -> dict[str, Any]:
    ids = ENCODING.encode_ordinary(example["text"])
    ids.append(50256)
    return {"ids": ids, "len": len(ids)}


def as_nanogpt(source: str, out: str, processes: int) -> None:
    global ENCODING
    from datasets import load_dataset

    ENCODING = tiktoken_gpt2()
    dataset = load_dataset("parquet", data_files=source, split="train")
    if len(dataset) > 1:
        splits = dataset.train_test_split(test_size=0.0005, seed=2357, shuffle=True)
        parts = {"train": splits["train"], "val": splits["test"]}
    else:
        parts = {"train": dataset}
    for name, part in parts.items():
        done = part.map(nanogpt_process, remove_columns=part.column_names, num_proc=processes)
        total = int(np.sum(done["len"], dtype=np.uint64))
        array = np.memmap(Path(out) / f"{name}.bin", np.uint16, "w+", shape=(total,))
        at, pieces = 0, min(1024, len(done))
        for index in range(pieces):
            batch = done.shard(num_shards=pieces, index=index, contiguous=True).with_format("numpy")
            ids = np.concatenate(batch["ids"])
            array[at : at + len(ids)] = ids
            at += len(ids)
        array.flush()


def as_onecard(source: str, out: str, processes: int) -> None:
    from onecard.data import prepare

    shutil.rmtree(out)
    prepare([source], out, workers=processes, name="bench")


WAYS = {"onecard": as_onecard, "llm.c": as_llmc, "nanoGPT": as_nanogpt}


def measure(way: str, source: Path, processes: int, work: Path) -> dict[str, float]:
    """One run in a process of its own: seconds, CPU seconds of it and all below it, the largest process."""
    out = Path(tempfile.mkdtemp(dir=work))
    environment = {
        **os.environ,
        "HF_HOME": str(out / "hf"),
        "HF_DATASETS_CACHE": str(out / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    target = out / "out"
    target.mkdir()
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, __file__, "--as", way, str(source), str(target), str(processes)],
        env=environment,
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{way} failed")
    shutil.rmtree(out)
    return {
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
    }


def repeated(corpus: Path, copies: int, path: Path) -> int:
    """The corpus `copies` times over, in FineWeb's row groups; returns the bytes of its text."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(corpus)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(copies):
            writer.write_table(table, row_group_size=1000)
    return copies * int(pc.sum(pc.binary_length(table["text"])).as_py())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale-mb", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--as",
        dest="way",
        nargs=4,
        metavar=("WAY", "SOURCE", "OUT", "PROCESSES"),
        help=argparse.SUPPRESS,
    )
    args = parser.parse_args()
    if args.way:
        WAYS[args.way[0]](args.way[1], args.way[2], int(args.way[3]))
        return 0
    if not args.corpus.exists():
        sys.exit(f"{args.corpus} is not here; give another parquet of text with --corpus")
    answer = measured(args.corpus, args.rounds, args.scale_mb)
    good = (
        answer["over_llm.c"] >= 8
        and answer["over_nanoGPT"] >= 15
        and answer["two_processes_over_one"] >= 1.7
        and max(answer["scale_peak_mb"], answer["onecard_peak_mb"]) < 600
    )
    if args.json:
        print(json.dumps({**answer, "good": good}))
    else:
        print("\n".join(f"{key:32} {value:10.2f}" for key, value in answer.items()))
    return 0 if good else 1


def measured(corpus: Path, rounds: int, scale_mb: int) -> dict[str, float]:
    """All ways in turn, so many rounds; the answer's figures are medians."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        text = repeated(corpus, COPIES, work / "text.parquet")
        pq.write_table(pq.read_table(corpus).slice(0, 1), work / "one.parquet")
        small = repeated(corpus, 1, work / "scale.parquet")
        big = repeated(corpus, max(1, scale_mb * 10**6 // small), work / "scale.parquet")
        found: dict[str, Any] = {way: [] for way in WAYS}
        start_up: dict[str, Any] = {way: [] for way in WAYS}
        scale: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for _ in range(rounds):
            for way in WAYS:
                processes = 1 if way == "onecard" else 2
                start_up[way].append(measure(way, work / "one.parquet", processes, work))
                found[way].append(measure(way, work / "text.parquet", processes, work))
            for processes, runs in scale.items():
                runs.append(measure("onecard", work / "scale.parquet", processes, work))
    middle = lambda runs, key: statistics.median(run[key] for run in runs)  # noqa: E731
    answer: dict[str, float] = {"text_mb": text / 1e6, "scale_mb": big / 1e6}
    for way in WAYS:
        cpu = middle(found[way], "cpu") - middle(start_up[way], "cpu")
        answer[f"{way}_mb_per_core_second"] = text / 1e6 / max(cpu, 1e-3)
        answer[f"{way}_start_seconds"] = middle(start_up[way], "seconds")
        answer[f"{way}_seconds"] = middle(found[way], "seconds")
        answer[f"{way}_peak_mb"] = max(run["peak_mb"] for run in found[way])
    one, two = (
        middle(scale[n], "seconds") - middle(start_up["onecard"], "seconds") for n in (1, 2)
    )
    answer["over_llm.c"] = answer["onecard_mb_per_core_second"] / answer["llm.c_mb_per_core_second"]
    answer["over_nanoGPT"] = (
        answer["onecard_mb_per_core_second"] / answer["nanoGPT_mb_per_core_second"]
    )
    answer["one_process_mb_per_second"] = big / 1e6 / one
    answer["two_processes_over_one"] = one / two
    answer["scale_peak_mb"] = max(run["peak_mb"] for runs in scale.values() for run in runs)
    return answer


if __name__ == "__main__":
    sys.exit(main())
