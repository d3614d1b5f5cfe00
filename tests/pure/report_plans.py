"""A plan with the figures of a real RTX 4070 run, so that reports can be tested apart from the predictions."""

from onecard.config import RunConfig
from onecard.facts.gpus import find_gpu
from onecard.messages import Note
from onecard.plan.params import params
from onecard.plan.result import (
    Energy,
    Flops,
    KnownRun,
    Loss,
    Memory,
    Mfu,
    Range,
    RunPlan,
    Time,
    Tokens,
)
from onecard.units import GIB

CONFIG = RunConfig(n_embd=384, batch_size=16, gradient_accumulation_steps=32, max_iters=20_000, learning_rate=1e-3,
                   min_lr=1e-4, lr_decay_iters=20_000, warmup_iters=500, dataset="fineweb")  # fmt: skip


def plan_4070() -> RunPlan:
    """40.56M parameters, 3.9 s a step, 20,000 steps over 3.68 B tokens: MISSION's worked example."""
    count = params(CONFIG.shape)
    gib = {"weights": 0.153, "gradients": 0.153, "optimizer": 0.305, "activations": 2.66, "logits": 4.6,
           "context": 0.45, "slack": 0.42}  # fmt: skip
    step = Range(3.5, 3.9, 4.4)
    steps = CONFIG.max_iters
    per_token = 6 * count.nanogpt + 12 * 12 * 384 * 1024
    total = CONFIG.total_tokens
    return RunPlan(
        schema="onecard.plan/1",
        version="0",
        config=CONFIG,
        device=find_gpu("RTX 4070"),
        gpus=1,
        dtype="bfloat16",
        params=count,
        tokens=Tokens(CONFIG.tokens_per_step, total, total / count.nanogpt, 0.82e9, "fineweb", 3_680_000_000, 2.849),
        flops=Flops(per_token, 6 * count.nanogpt, 2.71e8, per_token * total, 6 * count.nanogpt * total, 2.71e8 * total),
        time=Time(step, step.inverse(524_288), step.scaled(steps), 32.0,
                  {"matmul": 2.61, "memory": 1.18, "optimizer": 0.02, "launch": 0.09}, "fitted",
                  "2026-03-14T07:12:00"),
        mfu=Mfu(Range(0.61, 0.69, 0.77), Range(0.114, 0.129, 0.144)),
        memory=Memory({k: round(v * GIB) for k, v in gib.items()}, Range(7.7 * GIB, 7.87 * GIB, 8.1 * GIB),
                      Range(8.5 * GIB, 8.74 * GIB, 9.3 * GIB), round(11.99 * GIB), round(0.5 * GIB), "yes", []),
        energy=Energy(200, Range(3.9, 4.33, 4.9), Range(0.7, 0.78, 0.88), "USD", 0.18, "US homes, 2025-09"),
        loss=Loss(Range(3.42, 3.49, 3.56), Range(30.6, 32.8, 35.2),
                  [(k, 3.2 + 2.0 * (k / 500) ** -0.5) for k in range(500, 20_001, 500)], 0.012, "fineweb",
                  Note("loss_above_gpt2", "GPT-2 of this size ({size}) reaches {loss:.2f}: this run ends above it",
                       size="124M", loss=3.29), True),
        known_runs=[
            KnownRun("GPT-2 124M, llm.c, FineWeb 10B", 124_475_904, 10e9, 8.6e18, 0.47, 3.29, "public"),
            KnownRun("GPT-2 1.5B, 1 T tokens (guess)", 1_557_611_200, 1e11, 9.3e20, 0.0044, None, "public"),
        ],
        warnings=[Note("vocab", "vocab_size {vocab:int} is not a multiple of 64", vocab=50257),
                  Note("epochs", "the data is seen {epochs:.1f} times", epochs=2.85)],
        formulas={
            "params.total": "V·C + T·C + L·(12·C² + 2·C) + C; counted tensor by tensor",
            "memory.allocated_bytes": "16N + 2(12LC² + VC) + B·T·[L(36C + 4H + 12) + 6C + 32] + 6·B·T·V",
            "time.step_seconds": "matmul FLOPs ÷ (e₁·peak) + bytes ÷ (e₂·bandwidth); e₁, e₂ fitted per architecture",
            "flops.per_token_nanogpt": "6·N + 12·L·C·T, N without position embeddings (PaLM, appendix B)",
        },
    )  # fmt: skip
