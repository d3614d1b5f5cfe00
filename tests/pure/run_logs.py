"""Logs as trainers write them, made up for the tests: the two RTX 4070 runs of the worked example among them."""

import math
import random
from itertools import pairwise

HEADER = """\
Overriding config with config/train_fineweb.py:
# my run
out_dir = 'out-fineweb'
eval_interval = 500
log_interval = {log_interval}
wandb_log = True # override via command line if you like

dataset = 'fineweb'
gradient_accumulation_steps = {accumulation}
batch_size = {batch}
block_size = 1024
n_layer = 12
n_head = 12
n_embd = {width}
learning_rate = {lr} # with baby networks can afford to go a bit higher
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 100

tokens per iteration will be: {tokens:,}
Initializing a new model from scratch
defaulting to vocab_size of GPT-2 to 50304 (50257 rounded up for efficiency)
number of parameters: {params:.2f}M
num decayed parameter tensors: 50, with {decayed:,} parameters
num non-decayed parameter tensors: 25, with {kept:,} parameters
using fused AdamW: True
compiling the model... (takes a ~minute)
wandb: Currently logged in as: somebody
wandb: Tracking run with wandb version 0.18.0
"""


def between(points, step):
    """The loss between known points: straight in the logarithm of the step."""
    known = sorted(points.items())
    for (a, first), (b, last) in pairwise(known):
        if a <= step <= b:
            return first + (last - first) * (math.log1p(step) - math.log1p(a)) / (
                math.log1p(b) - math.log1p(a)
            )
    return known[-1][1]


def nanogpt_log(
    width,
    lr,
    seconds,
    batch,
    accumulation,
    losses,
    steps,
    *,
    seed=1,
    log_interval=10,
    evals=500,
    jitter=0.002,
    noise=0.03,
    header=True,
    compile_seconds=40.0,
    eval_seconds=25.0,
    end="\n",
):
    """A nanoGPT log whose median step and losses at the given points are known."""
    source = random.Random(seed)
    matrices = 12 * 12 * width**2 + 50304 * width
    norms = 25 * width
    tokens = batch * accumulation * 1024
    count = matrices + norms
    lines = []
    if header:
        lines += HEADER.format(
            log_interval=log_interval,
            accumulation=accumulation,
            batch=batch,
            width=width,
            lr=lr,
            tokens=tokens,
            params=count / 1e6,
            decayed=matrices + 1024 * width,
            kept=norms,
        ).splitlines()
    mfu = (6 * count + 12 * 12 * width * 1024) * tokens / seconds / 312e12
    running = -1.0
    for step in range(steps + 1):
        evaluated = evals and step % evals == 0
        if evaluated:
            val = between(losses, step)
            lines.append(f"step {step}: train loss {val - 0.01:.4f}, val loss {val:.4f}")
            if step:
                lines.append("saving checkpoint to out-fineweb")
        if step % log_interval == 0:
            time = seconds * (1 + source.uniform(-jitter, jitter))
            time += compile_seconds if step == 0 else eval_seconds if evaluated else 0.0
            if step >= 5 * log_interval:
                now = mfu * seconds / time
                running = now if running < 0 else 0.9 * running + 0.1 * now
            loss = between(losses, step) + source.gauss(0, noise)
            lines.append(
                f"iter {step}: loss {loss:.4f}, time {time * 1000:.2f}ms, mfu {running * 100:.2f}%"
            )
    return end.join(lines) + end


def small_run(**more):
    """384 wide on an RTX 4070, 3.9 s a step."""
    given = {"losses": {0: 10.9, 500: 5.5328, 1000: 4.4593}, "steps": 1000, **more}
    return nanogpt_log(384, 1e-3, 3.9, 16, 32, **given)


def wide_run(**more):
    """768 wide on the same card, 9.34 s a step."""
    given = {"losses": {0: 10.9, 500: 5.5194}, "steps": 500, "seed": 2, **more}
    return nanogpt_log(768, 3e-4, 9.34, 8, 64, **given)
