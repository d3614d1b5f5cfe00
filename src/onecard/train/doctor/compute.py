"""Checks that compute on the device: dtypes against fp32, attention back ends, the real step, memory, resume, loader."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from onecard.config import RunConfig
from onecard.errors import OnecardError, first_line
from onecard.model import machine
from onecard.planner import plan
from onecard.train.doctor.answers import Answers, Check
from onecard.train.io.loader import read_windows, to_device
from onecard.train.probe import start
from onecard.units import show_bytes, show_duration

# How far a product in a dtype may be from fp32's, as a share of its norm: a few times what its digits explain.
_MOST_ERROR = {"bfloat16": 0.02, "float16": 0.005}
_VOCABULARY = 1024


def step_config(device: torch.device) -> RunConfig:
    """A small model with the shapes of a real one: compiled and stepped within seconds."""
    card = device.type == "cuda"
    return RunConfig(
        n_layer=4 if card else 2,
        n_head=6 if card else 2,
        n_embd=384 if card else 64,
        block_size=512 if card else 64,
        batch_size=8 if card else 4,
        gradient_accumulation_steps=1,
        vocab_size=50304 if card else _VOCABULARY,
        max_iters=10,
        lr_decay_iters=10,
        warmup_iters=2,
        device=str(device),
        compile=False,
        eval_iters=1,
        eval_interval=100,
    )


def precision(answers: Answers, size: int = 512) -> Check:
    """bf16, fp16 and fp8 by a real matmul; where the dtype `auto` means is wrong, the next one is chosen."""
    torch.manual_seed(0)
    a, b = (torch.randn(size, size) for _ in range(2))
    exact = a.double() @ b.double()
    errors: dict[str, float] = {}
    for dtype in ("bfloat16", "float16"):
        kind = getattr(torch, dtype)
        try:
            product = (a.to(answers.device, kind) @ b.to(answers.device, kind)).cpu().double()
            errors[dtype] = ((product - exact).norm() / exact.norm()).item()
        except RuntimeError:
            continue
    figures = tuple((f"{dtype}_error", error) for dtype, error in errors.items())
    # NaN compares false
    good = [dtype for dtype, error in errors.items() if error <= _MOST_ERROR[dtype]]
    wanted = machine.choose_precision(
        "auto", answers.kind, answers.capability, answers.gcn_arch
    ).dtype
    fp8 = "fp8 computes" if _fp8(answers) else "no fp8"
    shown = ", ".join(f"{dtype} off by {error:.2%}" for dtype, error in errors.items()) or "none"
    if wanted == "float32" or wanted in good:
        return Check("precision", "ok", f"{wanted} is used; {shown}; {fp8}", figures)
    other = next((dtype for dtype in ("bfloat16", "float16") if dtype in good), "float32")
    return Check(
        "precision",
        "fall-back",
        f"{wanted} is wrong or missing on this device ({shown}): {other} is used",
        figures,
        (("dtype", other),),
    )


def _fp8(answers: Answers) -> bool:
    try:
        eighth = torch.ones(16, 16, device=answers.device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=answers.device)
        done = torch._scaled_mm(
            eighth, eighth.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
        return bool((done.float() == 16).all())
    except (RuntimeError, AttributeError, TypeError, ValueError, NotImplementedError):
        return False


def attention(answers: Answers) -> Check:
    """SDPA's back ends, each forward and backward; "math" of onecard's own where none of them works."""
    chosen = machine.choose_precision(
        "auto", answers.kind, answers.capability, answers.gcn_arch
    ).dtype
    works = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        try:
            q, k, v = (
                torch.randn(
                    2, 4, 64, 64, device=answers.device, dtype=getattr(torch, chosen)
                ).requires_grad_()
                for _ in range(3)
            )
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out.sum().backward()
            if torch.isfinite(out).all() and q.grad is not None and torch.isfinite(q.grad).all():
                works.append(backend.name.removesuffix("_ATTENTION").lower())
        except (RuntimeError, NotImplementedError):
            continue
    if not works:
        return Check(
            "attention",
            "fall-back",
            "torch's fused attention fails here: onecard's plain one is used, slower and with more memory",
            settings=(("attention", "math"),),
        )
    if "flash" in works:
        return Check("attention", "ok", f"{', '.join(works)}")
    return Check(
        "attention", "ok", f"{', '.join(works)}; no Flash on this device: slower, more memory"
    )


@contextmanager
def small_data(config: RunConfig) -> Iterator[RunConfig]:
    """A config whose data and out_dir are in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="onecard-doctor-") as place:
        folder = Path(place) / "data"
        folder.mkdir()
        for name in ("train", "val"):
            tokens = np.random.default_rng(7).integers(0, _VOCABULARY, 60_000)
            tokens.astype("<u2").tofile(folder / f"{name}.ds")  # ids of no known vocabulary
        yield config.replace(dataset=str(folder), out_dir=str(Path(place) / "out"))


def step(answers: Answers, compiled: bool, steps: int = 6) -> Check:
    """The real step of a small model: its time against the plan's, and whether the compiler makes it."""
    name = "compiled step" if compiled else "step"
    config = step_config(answers.device).replace(compile=compiled)
    off = (("compile", False),) if compiled else ()
    began = time.perf_counter()
    try:
        turn = start(answers.device, config)
        if turn is None:
            return Check(name, "fall-back", "it cannot be compiled: runs are eager", settings=off)
        turn.steps(2)
        first = time.perf_counter() - began
        seconds = min(turn.steps(steps))
    except Exception as error:
        why = f"it fails: {first_line(error)}"
        return Check(name, "fall-back" if compiled else "action", why, settings=off)
    figures = [("seconds", seconds), ("first_seconds", first)]
    try:
        planned = plan(config, answers.facts).time.step_seconds if answers.facts else None
    except OnecardError:
        planned = None
    shown = f"{show_duration(seconds)} a step, the first two took {show_duration(first)}"
    if planned is None:
        return Check(name, "ok", shown, tuple(figures))
    figures.append(("planned_seconds", planned.mid))
    shown += f"; planned {show_duration(planned.low)} to {show_duration(planned.high)}"
    if answers.kind == "cuda" and seconds > 3 * planned.high:
        slow = f"{shown}: far slower than planned; is something else using the card?"
        return Check(name, "action", slow, tuple(figures))
    if seconds > planned.high:
        shown += ", so slower than planned; other programs may be using the device"
    return Check(name, "ok", shown, tuple(figures))


def memory(answers: Answers) -> Check:
    """The allocator's peak of a small step beside the plan's figure."""
    if answers.kind != "cuda" or answers.facts is None:
        return Check("memory", "ok", "compared with the plan on CUDA cards only")
    config = step_config(answers.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(answers.device)
    try:
        turn = start(answers.device, config)
        assert turn is not None
        turn.steps(2)
    except Exception as error:
        return Check("memory", "action", f"a small step does not fit: {first_line(error)}")
    peak = torch.cuda.max_memory_allocated(answers.device)
    wanted = plan(config, answers.facts).memory.allocated_bytes
    shown = f"{show_bytes(peak)} allocated, planned {show_bytes(wanted.low)} to {show_bytes(wanted.high)}"
    return Check("memory", "ok", shown, (("peak_bytes", peak), ("planned_bytes", wanted.mid)))


def resume(answers: Answers) -> Check:
    """A stop in the middle of ten steps, compared bit by bit."""
    from onecard.train.verify import verify_resume

    try:
        with small_data(step_config(answers.device)) as config:
            proof = verify_resume(config, 10)
    except Exception as error:
        return Check("resume", "action", f"it fails: {first_line(error)}")
    if proof.exact:
        return Check("resume", "ok", "10 steps, the same to the last bit after a stop")
    return Check(
        "resume",
        "fall-back",
        f"losses differ by up to {proof.largest_loss_difference:.1g} after a stop: the same data and state, other rounding",
        (("loss_difference", proof.largest_loss_difference),),
    )


def loader(answers: Answers) -> Check:
    """Rows read and moved to the device, in tokens a second."""
    from onecard.data import open_dataset

    with small_data(step_config(answers.device)) as config:
        split = open_dataset(config.dataset).splits["train"]
        windows = np.arange(64)
        began = time.perf_counter()
        done = 0
        while time.perf_counter() - began < 0.2:
            rows = read_windows(split, config.block_size, windows)
            if answers.kind == "cuda":
                rows = rows.pin_memory()
            rows = to_device(rows, answers.device)
            done += rows.numel()
        machine.synchronize(answers.device)
        rate = done / (time.perf_counter() - began)
    return Check(
        "data loader", "ok", f"{rate / 1e6:,.0f} M tokens/s", (("tokens_per_second", rate),)
    )
