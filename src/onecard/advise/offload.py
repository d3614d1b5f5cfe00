"""What would fit if the optimizer lived in the computer's memory: an estimate, for onecard does not train so.

As ZeRO-Offload does it (Ren et al. 2021): bf16 weights and activations stay on the card, gradients go down and weights
come back every step, and the CPU updates fp32 weights and moments.

>>> from onecard.config import load
>>> from onecard.facts.gpus import find_gpu
>>> card = find_gpu("RTX 4070 Ti")
>>> offload(load("gpt2-xl"), card, card.training_dtype).fits
'yes'
"""

from dataclasses import dataclass

from onecard.advise.savers import variant
from onecard.advise.shapes import total_params
from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.memory import peak_memory
from onecard.planner.result import Fits

HOST_BYTES = 16  # a parameter: fp32 weights, gradients and two moments
LINK = 12e9  # bytes a second each way over PCIe 4.0 ×16, as between cards without NVLink
HOST_BANDWIDTH = (
    40e9  # bytes a second of a desktop's two channels of DDR5, less what the system takes
)
UPDATE_BYTES = 28  # read and written for one parameter's Adam step in fp32
_MOVED = ("weights", "gradients", "optimizer", "cast_weights")


@dataclass(frozen=True)
class Offload:
    process_bytes: float  # on the card, at micro-batch 1 with recompute and chunked loss
    host_bytes: float
    extra_step_seconds: float
    fits: Fits


def offload(config: RunConfig, device: Device, dtype: str) -> Offload:
    """At micro-batch 1 with every other saver."""
    count = total_params(config.shape)
    saving = variant(config, batch_size=1, chunked_loss=True, recompute="block")
    memory = peak_memory(saving, device, dtype, advice=False)
    stays = memory.process_bytes.mid - sum(memory.parts.get(name, 0) for name in _MOVED)
    card = stays + 2 * count + 2 * 2 * count / config.n_layer  # two layers' gradients on their way
    room = memory.card_bytes - memory.desktop_bytes
    return Offload(
        process_bytes=card,
        host_bytes=HOST_BYTES * count,
        extra_step_seconds=2 * 2 * count / LINK + UPDATE_BYTES * count / HOST_BANDWIDTH,
        fits="yes" if card * 1.1 < room else "tight" if card < room else "no",
    )
