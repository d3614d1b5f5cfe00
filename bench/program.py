"""One program under measurement, in a process of its own: nanoGPT's step or onecard's, driven by lines of JSON.

    {"do": "steps", "count": 5}  →  {"seconds": [0.021, …], "cpu_seconds": […], "loss": 2.31}
    {"do": "eval"}               →  {"loss": 1.93}           the whole validation split, fixed windows; not in any clock
    {"do": "peak"}               →  {"bytes": 1234567}       the process's largest resident memory
    {"do": "tensors"}            →  {"bytes": 1234567}       the most that torch's allocator had handed out in one step
    {"do": "profile"}            →  {"matmul": 0.025, …}     seconds of a step by kind of work; onecard's only

nanoGPT's step is its train.py's, line by line (same sampling, same schedule, same clipping), around its own model.py.
"""

import contextlib
import json
import math
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from side_by_side import lasting_bytes, tensors_of_a_step


class NanoGPT:
    """model.py of a nanoGPT checkout; the settings are its own keys."""

    def __init__(self, settings: dict[str, Any]):
        sys.path.insert(0, settings["nanogpt"])
        with contextlib.redirect_stdout(sys.stderr):
            from model import GPT, GPTConfig

            self.s = s = settings
            torch.manual_seed(s.get("seed", 1337))
            names = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
            model = GPT(GPTConfig(**{name: s[name] for name in names}, dropout=0.0, bias=False))
            betas = (0.9, s.get("beta2", 0.95))
            self.optimizer = model.configure_optimizers(
                s.get("weight_decay", 0.1), s["learning_rate"], betas, "cpu"
            )
        self.model: Any = torch.compile(model) if s.get("compile") else model
        low = s.get("dtype") == "bfloat16"
        self.context = torch.autocast("cpu", torch.bfloat16, enabled=low)
        self.tokens = {
            name: np.memmap(Path(s["dataset"], f"{name}.bin"), np.uint16, "r")
            for name in ("train", "val")
        }
        self.batch = self._batch()
        self.done = 0

    def _batch(self):
        data, block = self.tokens["train"], self.s["block_size"]
        ix = torch.randint(len(data) - block, (self.s["batch_size"],))
        x = torch.stack([torch.from_numpy(data[i : i + block].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(data[i + 1 : i + 1 + block].astype(np.int64)) for i in ix]
        )
        return x, y

    def _lr(self) -> float:
        s, it = self.s, self.done
        warm, end, floor = (
            s.get("warmup_iters", 100),
            s["max_iters"],
            s.get("min_lr", s["learning_rate"] / 10),
        )
        if it < warm:
            return s["learning_rate"] * (it + 1) / (warm + 1)
        if it > end:
            return floor
        share = 0.5 * (1 + math.cos(math.pi * (it - warm) / max(end - warm, 1)))
        return floor + share * (s["learning_rate"] - floor)

    def step(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        with self.context:
            _, loss = self.model(*self.batch)
        self.batch = self._batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return loss.item()

    def lasting(self):
        return self.model.parameters(), self.optimizer

    def eval(self) -> float:
        self.model.eval()
        with self.context:
            answer = _whole(lambda x, y: self.model(x, y)[1], self.tokens["val"], self.s)
        self.model.train()
        return answer


class Onecard:
    """A training session of onecard, stepped by hand; the settings are RunConfig's keys, recipe's defaults filled in."""

    def __init__(self, settings: dict[str, Any]):
        from onecard.config import load
        from onecard.train.run.outputs import Silent
        from onecard.train.run.setup import open_session
        from onecard.train.run.workers import Workers

        self.s = settings
        folder = tempfile.mkdtemp()
        given = {"dtype": "float32", **settings}
        words = [f"{key}={value}" for key, value in given.items() if key != "eval_windows"]
        words += [f"out_dir={folder}/run", "device=cpu"]
        self.stack = contextlib.ExitStack()
        workers = Workers("auto", torch.device("cpu"))
        self.session, _ = self.stack.enter_context(
            open_session(load(None, words), workers, False, Silent())
        )
        self.done = 0

    def step(self) -> float:
        from onecard.train.optim import lr_at

        session = self.session
        rows = session.loader.rows(self.done)
        loss, _ = session.stepper.gradients(rows, self.done, self.done)
        session.stepper.apply(lr_at(session.config, self.done), self.done)
        self.done += 1
        return loss

    def lasting(self):
        return self.session.model.parameters(), self.session.stepper.optimizer

    def profile(self) -> dict[str, float]:
        from onecard.train.profile import profile_steps

        with tempfile.TemporaryDirectory() as folder:
            found = profile_steps(
                self.step, Path(folder), on_card=self.session.workers.device.type == "cuda"
            )
        return {part.kind: part.share * found.step_seconds for part in found.parts}

    def eval(self) -> float:
        model = self.session.stepper.forward
        model.eval()
        tokens = np.memmap(Path(self.s["dataset"], "val.bin"), np.uint16, "r")
        answer = _whole(lambda x, y: model(x, y)[1], tokens, self.s)
        model.train()
        return answer


def _whole(loss_of, tokens, settings: dict[str, Any]) -> float:
    """The mean loss over windows that do not overlap, `eval_windows` at equal distances, else all: the trainer's own ones."""
    block = settings["block_size"]
    there = (len(tokens) - 1) // block
    windows = min(there, settings.get("eval_windows") or there)
    starts = torch.arange(windows) * there // windows * block
    places = starts[:, None] + torch.arange(block + 1)
    both = torch.from_numpy(np.asarray(tokens).astype(np.int64))[places]
    x, y = both[:, :-1].contiguous(), both[:, 1:].contiguous()
    rows = max(1, 2048 // block)
    with torch.no_grad():
        total = sum(
            loss_of(a, b).item() * len(a) for a, b in zip(x.split(rows), y.split(rows), strict=True)
        )
    return total / windows


def main() -> None:
    kind, settings = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(settings.pop("threads", None) or os.cpu_count() or 1)
    program = NanoGPT(settings) if kind == "nanogpt" else Onecard(settings)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "steps":
            seconds, cpu_seconds, loss = [], [], None
            for _ in range(order["count"]):
                began, cpu_began = time.perf_counter(), time.process_time()
                loss = program.step()
                seconds.append(time.perf_counter() - began)
                cpu_seconds.append(time.process_time() - cpu_began)
            answer: dict[str, Any] = {"seconds": seconds, "cpu_seconds": cpu_seconds, "loss": loss}
        elif order["do"] == "eval":
            answer = {"loss": program.eval()}
        elif order["do"] == "tensors":
            answer = {"bytes": tensors_of_a_step(program.step, lasting_bytes(*program.lasting()))}
        elif order["do"] == "profile" and isinstance(program, Onecard):
            answer = program.profile()
        else:
            answer = {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
