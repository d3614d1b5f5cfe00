"""A made-up machine, its steps and its calibration, for the tests of calibrations."""

import dataclasses

from onecard.config import RunConfig
from onecard.facts.here import cpu
from onecard.planner.calibration import RATES, Calibration, Observation
from onecard.planner.calibration_fit import fit_costs
from onecard.planner.step_work import predicted
from onecard.planner.workload import Workload

SMALL = RunConfig(
    n_layer=2,
    n_head=4,
    n_embd=128,
    block_size=128,
    batch_size=4,
    gradient_accumulation_steps=1,
    vocab_size=512,
    compile=False,
)
HINTS = {
    "blocks": 1e-11,
    "head": 1e-11,
    "attention": 3e-11,
    "layers": 2e-10,
    "logits": 2e-10,
    "fresh": 2e-10,
    "weights": 2e-10,
    "kernels": 5e-6,
    "update": 2e-10,
    "step": 1e-4,
}
# What a made-up machine takes; the fit must find it from steps alone.
TRUE = {
    "blocks": 7e-12,
    "head": 1.3e-11,
    "attention": 2e-11,
    "layers": 3e-10,
    "logits": 1e-10,
    "fresh": 4e-10,
    "weights": 1e-10,
    "kernels": 4e-6,
    "update": 3e-10,
    "step": 3e-4,
}


def workloads():
    shapes = [
        (2, 64, 64, 4, 1, 256),
        (6, 128, 128, 4, 1, 256),
        (2, 128, 128, 16, 1, 2048),
        (2, 256, 512, 2, 1, 256),
        (4, 256, 128, 8, 1, 512),
        (3, 192, 64, 8, 2, 8192),
        (2, 384, 128, 8, 1, 2048),
        (6, 384, 64, 4, 1, 256),
        (3, 512, 64, 4, 3, 512),
        (2, 128, 128, 4, 1, 50304),
        (4, 256, 64, 4, 1, 50304),
        (2, 384, 128, 4, 1, 50304),
    ]
    for layers, width, context, batch, accumulation, vocabulary in shapes:
        config = SMALL.replace(
            n_layer=layers,
            n_embd=width,
            block_size=context,
            batch_size=batch,
            gradient_accumulation_steps=accumulation,
            vocab_size=vocabulary,
        )
        yield Workload.of(config, "float32")


OBSERVED = [Observation(w, predicted(w, TRUE)) for w in workloads()]


def calibration(device=None, **changes) -> Calibration:
    device = device or cpu()
    made = Calibration(
        device=device.name,
        memory_bytes=device.usable_bytes,
        torch="2.13.0",
        power_limit_watts=device.power_limit_watts,
        date="2026-03-01T12:00:00+00:00",
        dtype="tf32",
        rates=dict.fromkeys(RATES, 1e10),
        host_seconds=0.0,
        costs={"eager": fit_costs(OBSERVED, HINTS)},
        spread={"eager": 0.05},
        observations=tuple(OBSERVED),
    )
    return dataclasses.replace(made, **changes)
