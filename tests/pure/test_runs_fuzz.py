"""Thousands of damaged logs: never a traceback, and no figure that is wrong without a word."""

import io
import json
import random
import re
import time

import pytest
from run_logs import nanogpt_log
from test_runs_foreign import LLMC, MEGATRON, NANOCHAT

from onecard.facts import find_gpu
from onecard.runs.compare import compare
from onecard.runs.explain import explain, log_findings
from onecard.runs.figures import figures
from onecard.runs.foreign.csv_history import read_csv
from onecard.runs.foreign.text_log import read_text, text_lines
from onecard.runs.foreign.trainer_state import read_trainer

CARD = find_gpu("RTX 4070")
LOG = nanogpt_log(384, 1e-3, 3.9, 16, 32, {0: 10.9, 100: 6.5, 300: 5.0}, 300, evals=100, noise=0.02)
LOSSES, LAST_EVAL = re.compile(r"loss [\d.]+"), "step 300: train loss 4.9900, val loss 5.0000"
OF_THE_MODEL = ("params_nanogpt", "flops_per_token")
PARAMETERS, TOKENS = "number of parameters: 40.56M", "tokens per iteration will be: 524,288"
OTHERS = {
    "llm.c": LLMC
    + "s:0 tel:11.0\n"
    + "".join(f"s:{i} trl:{11 - i / 10:.4f} lr:0.000600 norm:1.12\n" for i in range(1, 30)),
    "nanochat": NANOCHAT,
    "megatron": MEGATRON,
    "modded": "".join(
        f"step:{i}/1480 train_loss:{9 - i / 9:.4f} train_time:{i * 250}ms step_avg:250.00ms\n"
        for i in range(40)
    ),
    "litgpt": "".join(
        f"Epoch 1 | iter {4 * i} step {i} | loss train: {9 - i / 10:.3f}, val: n/a | iter time: 975.00 ms (step)"
        f" remaining time: 2 days\niter {4 * i}: val loss 7.1234, val time: 12345.67 ms\n"
        for i in range(1, 20)
    ),
}
OTHERS["llamafactory"] = "".join(
    f'{{"current_steps": {i}, "total_steps": 40, "loss": {9 - i / 10}, "elapsed_time": "0:{i:02}:00"}}\n'
    for i in range(1, 40)
)
CSV = "_step,_timestamp,train/loss,val/loss,mfu,tokens\n" + "".join(
    f"{i},{1.7e9 + 4 * i},{9 - i / 50:.3f},{9 - i / 50 if i % 10 == 0 else ''},12.9,{i * 524288}\n"
    for i in range(40)
)
STATE = json.dumps(
    {
        "log_history": [{"step": i, "loss": 9 - i / 50, "eval_loss": 8.0} for i in range(40)],
        "max_steps": 40,
    }
)


def mutated(text: bytes, source: random.Random) -> bytes:
    """One to three of the things that happen to logs."""
    data = bytearray(text)
    for _ in range(source.randint(1, 3)):
        kind = source.randrange(11)
        at = source.randrange(max(1, len(data)))
        upto = min(len(data), at + source.randint(1, 60))
        lines = bytes(data).split(b"\n")
        row = source.randrange(len(lines))
        if kind == 0:
            del data[at:]  # cut off
        elif kind == 1:
            del data[at:upto]
        elif kind == 2 and data:
            data[min(at, len(data) - 1)] = source.randrange(256)
        elif kind == 3:
            digits = [i for i in range(at, min(at + 400, len(data))) if 48 <= data[i] < 58]
            if digits:
                data[source.choice(digits)] = 48 + source.randrange(10)
        elif kind == 4:
            data[at:at] = bytes(source.randrange(256) for _ in range(source.randint(1, 40)))
        elif kind == 5:
            data[at:at] = data[at:upto]
        elif kind == 6:
            del lines[row]
            data = bytearray(b"\n".join(lines))
        elif kind == 7:
            lines.insert(source.randrange(len(lines)), lines[row])
            data = bytearray(b"\n".join(lines))
        elif kind == 8:
            data[at:at] = source.choice(
                [
                    b"wandb: noise\n",
                    b"\r\n",
                    b"\x00",
                    "é→".encode(),
                    b"Traceback (most recent call last):\n",
                    b"iter ",
                    b"step 10: train loss",
                    b"nan",
                    b"-1",
                    b"1e999",
                    b"\xff\xfe",
                    b"[" * 50,
                ]
            )
        elif kind == 9 and row + 1 < len(lines):
            lines[row : row + 2] = [lines[row] + lines[row + 1]]
            data = bytearray(b"\n".join(lines))
        else:
            again = lines[max(0, row - 8) : row]
            lines[row:row] = again
            data = bytearray(b"\n".join(lines))
    return bytes(data)


def flagged(f) -> set[str]:
    return {finding.note.code for rule in log_findings.RULES for finding in rule(f)}


def nothing_contradicts(text: str, name: str, value: float) -> bool:
    """Whether the damaged log itself says so, and the one other line that showed it is damaged too.

    A changed digit of the very last loss is what the file says; nobody can know what it was."""
    if name == "final_loss":
        changed = set(LOSSES.findall(text)) - set(LOSSES.findall(LOG))
        return f"loss {value:.4f}" in changed or (bool(changed) and LAST_EVAL not in text)
    return (PARAMETERS if name in OF_THE_MODEL else TOKENS) not in text


def wrong_in_silence(f, truth, text: str) -> str | None:
    """What is off by more than it may, if nothing is reported about it."""
    message = flagged(f) - {"no-card", "no-config", "compile-in-first-step", "evaluation-in-steps"}
    if message:
        return None
    for name, most in (
        ("step_seconds", 0.02),
        ("tokens_per_step", 0.0),
        ("params_nanogpt", 0.0),
        ("final_loss", 0.03),
        ("flops_per_token", 0.03),
        ("tokens_per_second", 0.03),
    ):
        value, right = getattr(f, name), getattr(truth, name)
        if value is not None and abs(value / right - 1) > most and name not in f.inferred:
            if name == "final_loss" and f.run.last_step < 300:
                continue  # cut off: an earlier loss is then the last one
            if name != "step_seconds" and nothing_contradicts(text, name, value):
                continue
            return f"{name} = {value}, not {right}"
    return None


def run_fuzz(count: int, seed: int) -> None:
    truth = figures(read_text(io.BytesIO(LOG.encode()), "log")[0])
    source = random.Random(seed)
    for i in range(count):
        data = mutated(LOG.encode(), source)
        runs = read_text(io.BytesIO(data), "log")
        for run in runs:
            f = figures(run)
            json.dumps(f.to_json(), allow_nan=False)
            if len(runs) == 1:
                silent = wrong_in_silence(f, truth, data.decode(errors="replace"))
                assert silent is None, (seed, i, silent)
        if i % 25 == 0 and runs:
            read = [figures(run, CARD) for run in runs]
            for f in read:
                [str(finding.note) for finding in explain(f)]
            json.dumps(
                compare(
                    [*read, figures(read_text(io.BytesIO(LOG.encode()), "log")[0], CARD)]
                ).to_json(),
                allow_nan=False,
            )


def test_damaged_nanogpt_logs():
    run_fuzz(1_500, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_thousand(seed):
    run_fuzz(10_000, seed)


@pytest.mark.parametrize("form", [*OTHERS, "csv", "json"])
def test_other_formats_survive_damage(form):
    source = random.Random(3)
    for _ in range(300):
        if form == "csv":
            data = mutated(CSV.encode(), source)
            runs = read_csv(text_lines(io.BytesIO(data)), "a")
        elif form == "json":
            runs = read_trainer(io.BytesIO(mutated(STATE.encode(), source)), "a")
        else:
            runs = read_text(io.BytesIO(mutated(OTHERS[form].encode(), source)), "a")
        for run in runs:
            f = figures(run)
            json.dumps(f.to_json(), allow_nan=False)
            json.dumps([finding.to_json() for finding in explain(f)], allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        "iter " * 50_000,
        "iter 1: loss " + "9" * 100_000,
        "step " + "1" * 5000 + ": train loss 1.0000, val loss 1.0000",
        "iter 1: loss 1.0000, " + "a 1, " * 30_000,
        "x = " + "(" * 5000 + ")" * 5000,
        "batch_size = 9**9**9**9",
        "num decayed parameter tensors: 50, with ,,, parameters",
        "tokens per iteration will be: ,",
        "iter 1: loss 1.0000, time 1e400ms, mfu 1.00%",
    ],
)
def test_hostile_lines_end_quickly(text):
    began = time.process_time()
    for run in read_text(
        io.BytesIO((text + "\niter 2: loss 1.0000, time 10.00ms, mfu 1.00%\n").encode()), "a"
    ):
        explain(figures(run, CARD))
    assert time.process_time() - began < 5
