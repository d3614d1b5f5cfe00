"""What the benchmarks share: programs in processes of their own, the machine's description, dated results, data."""

import datetime
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


class Program:
    """program.py running; `steps`, `eval`, `peak` ask it. Only one works at a time: the others wait for a line."""

    def __init__(self, kind: str, **settings: Any):
        here = Path(__file__).parent
        source = os.pathsep.join([str(here.parent / "src"), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(here / "program.py"), kind, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._orders, self._answers = process, process.stdin, process.stdout
        self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"a program under measurement ended with code {self._process.wait()}")
        return json.loads(line)

    def _ask(self, **order: Any) -> dict[str, Any]:
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return self._answer()

    def steps(self, count: int) -> dict[str, Any]:
        """`seconds` and `cpu_seconds` of each step, and the last one's `loss`."""
        return self._ask(do="steps", count=count)

    def eval(self) -> float:
        return self._ask(do="eval")["loss"]

    def peak_bytes(self) -> int:
        return self._ask(do="peak")["bytes"]

    def tensor_bytes(self) -> int:
        """The most that torch's allocator had handed out in one step, weights and optimizer included."""
        return self._ask(do="tensors")["bytes"]

    def profile(self) -> dict[str, float]:
        """Seconds of a step by kind of work."""
        return self._ask(do="profile")

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


def tensors_of_a_step(step: Callable[[], object], held: int) -> int:
    """Bytes that torch's CPU allocator had handed out at most during `step`, on top of the `held` that were there before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events = [
        event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return held + peak


def lasting_bytes(parameters: Iterable[Any], optimizer: Any) -> int:
    """What is there before and after every step: weights and the optimizer's memory."""
    moments = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if hasattr(value, "nbytes")
    ]
    return sum(tensor.nbytes for tensor in [*parameters, *moments])


def machine() -> dict[str, Any]:
    """What a figure was measured on: the processor, its threads, versions, and its own fp32 matmul rate."""
    import torch

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next(
            (
                x.split(":", 1)[1].strip()
                for x in info.read_text().splitlines()
                if x.startswith("model name")
            ),
            name,
        )
    return {
        "processor": name,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "matmul_flops": matmul_flops(),
    }


def matmul_flops(size: int = 2048, tries: int = 12) -> float:
    """The median of a few square matmuls: the rate that a step can at most approach, under the clock of the moment."""
    import time

    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(tries):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds)


def store(name: str, result: dict[str, Any], suffix: str = "") -> Path:
    """results/NAME-DATE.json, with the machine and the day."""
    RESULTS.mkdir(exist_ok=True)
    day = datetime.date.today().isoformat()
    path = RESULTS / f"{name}-{day}{suffix}.json"
    aside = path.with_suffix(".aside")
    aside.write_text(
        json.dumps({"bench": name, "date": day, "machine": machine(), **result}, indent=1) + "\n"
    )
    os.replace(aside, path)
    return path


def random_tokens(folder: Path, vocabulary: int) -> Path:
    """A data set in nanoGPT's layout that says nothing: time does not depend on what the tokens are."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for split, count in (("train", 400_000), ("val", 20_000)):
            random = np.random.default_rng(0).integers(
                0, min(vocabulary, 50257), count, dtype=np.uint16
            )
            random.tofile(folder / f"{split}.bin")
        if vocabulary < 50257:
            letters = {number: chr(0x100 + number) for number in range(vocabulary)}
            meta = {
                "vocab_size": vocabulary,
                "itos": letters,
                "stoi": {c: i for i, c in letters.items()},
            }
            (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


def characters(text: Path, folder: Path) -> int:
    """nanoGPT's data/shakespeare_char: train.bin, val.bin (the last tenth), meta.pkl; the number of characters."""
    folder.mkdir(parents=True, exist_ok=True)
    words = text.read_text(encoding="utf-8")
    letters = sorted(set(words))
    number = {letter: i for i, letter in enumerate(letters)}
    tokens = np.array([number[letter] for letter in words], dtype=np.uint16)
    cut = int(0.9 * len(tokens))
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return len(letters)


def gpt2_tokens(parquet: Path, folder: Path, val_tokens: int = 100_000) -> int:
    """A parquet file's texts as GPT-2's tokens, end-of-text after each, in nanoGPT's layout; the number of training tokens."""
    import pyarrow.parquet as pq

    from onecard.data import gpt2

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "train.bin").exists():
        words = gpt2()
        assert words.eot is not None
        tokens: list[int] = []
        for text in pq.read_table(parquet, columns=["text"])["text"].to_pylist():
            tokens += [*words.encode(text), words.eot]
        whole = np.array(tokens, dtype=np.uint16)
        whole[:-val_tokens].tofile(folder / "train.bin")
        whole[-val_tokens:].tofile(folder / "val.bin")
    return (folder / "train.bin").stat().st_size // 2
