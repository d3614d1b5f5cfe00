"""An RTX 4070 that answers the doctor as a healthy one does; tests change what they are about."""

from pathlib import Path

import torch

from fake_driver import GIB
from onecard.facts.builds import BUILDS
from onecard.facts.gpus import find_gpu
from onecard.facts.nvml import Reading
from onecard.train.doctor.answers import Answers

CU130 = tuple(f"sm_{sm}" for sm in BUILDS[0].sm)
BUSY = Reading(
    watts=190.0, sm_mhz=2400, most_sm_mhz=2610, celsius=65, held_back_by=("power limit",)
)


def good_card(cache: Path) -> Answers:
    return Answers(
        torch.device("cuda", 0),
        "NVIDIA GeForce RTX 4070",
        find_gpu("RTX 4070"),
        torch_version="2.13.0+cu130",
        cuda="13.0",
        kernels=CU130,
        capability=(8, 9),
        memory_bytes=12 * GIB,
        free_bytes=11 * GIB,
        driver="580.95.05",
        reading=lambda: BUSY,
        seen=("NVIDIA GeForce RTX 4070",),
        system="linux",
        release="6.8.0",
        has_triton=True,
        cache=cache,
    )
