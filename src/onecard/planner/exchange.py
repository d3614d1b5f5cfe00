"""What cards send each other in a step, how long it takes, and how much of that hides behind their work.

>>> from onecard.facts.gpus import find_gpu
>>> w = Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=8, gpus=8, shard="full", shard_cards=8)
>>> sent = exchange_of(w, find_gpu("H100 SXM"))
>>> round(sent.each_pass_bytes / 1e9, 2), sent.once_bytes
(0.87, 0.0)
"""

from dataclasses import dataclass
from typing import Any

from onecard.facts.gpus import Device
from onecard.facts.links import DEFAULT_LINK, nvlink, speed
from onecard.planner.step_counts import waiting
from onecard.planner.workload import Workload

Fit = dict[str, Any]
# Of a byte that goes over a link while the card computes, its memory sees three: sent it is read, received it is read beside
# the card's own and their sum written (NCCL's ring, which adds up in place)
IN_MEMORY = 3
# Of a number of our own flat buffers (train/run/workers.py): read and written as it is laid in, and again as it is taken out
LAID_OUT_BYTES = 2 * (4 + 4)


@dataclass(frozen=True)
class Exchange:
    """Bytes that a card sends and receives, and the seconds they take on its links."""

    once_bytes: float  # a step, while the cards wait
    each_pass_bytes: float  # a micro-batch, beside the computing
    link: float  # bytes per second
    machines_seconds: float  # between machines, once a step, while the cards wait
    accumulation: float
    buffer_seconds: float = 0.0  # filling and emptying flat buffers, once a step

    @property
    def beside_seconds(self) -> float:
        return self.each_pass_bytes * self.accumulation / self.link

    @property
    def waiting_seconds(self) -> float:
        return self.once_bytes / self.link + self.machines_seconds + self.buffer_seconds

    @property
    def seconds(self) -> float:
        """In all, hidden or not."""
        return self.beside_seconds + self.waiting_seconds


def exchange_of(w: Workload, device: Device) -> Exchange:
    """Our own trainer's (train/run/workers.py and sharding.py).

    Replicated: the fp32 gradients are summed once a step, 2·(n-1)/n of them through every card. "grads": the weights are
    gathered once a step in the matmuls' dtype, (n-1)/n of them, and the gradients added up in fp32 in every micro-batch.
    "full": the weights are gathered twice in every micro-batch. Between machines, equal parts are summed once a step. Muon
    hands every matrix to one card and its move back.
    """
    link = w.link_bytes or link_bandwidth(device, w.nvlink)
    number = 4 if w.dtype in ("float32", "tf32") else 2
    across = 0.0
    if w.nodes > 1:
        across = 2 * (w.nodes - 1) / w.nodes * 4 * w.params / w.network_bytes
    cards = w.gpus // w.nodes if w.shard == "none" else w.shard_cards
    share = (cards - 1) / cards
    if w.shard == "none":
        once = 2 * share * 4 * w.params
        buffers = LAID_OUT_BYTES * w.params / device.bandwidth
        return Exchange(once, 0.0, link, across, w.accumulation, buffers)
    # a card in each machine: all that is sent goes between machines
    if cards == w.gpus and w.nodes > 1:
        link, across = w.network_bytes, 0.0
    matrices = w.n_layer * w.layer_params if w.optimizer == "muon" else 0
    once = share * 8 * matrices / cards
    if w.shard == "grads":
        return Exchange(
            once + share * number * w.params, share * 4 * w.params, link, across, w.accumulation
        )
    return Exchange(once, share * (2 * number + 4) * w.params, link, across, w.accumulation)


def exchange_seconds(w: Workload, device: Device, busy: float, fit: Fit) -> float:
    """What of the exchange the cards wait for: all that comes once a step, and what their work does not hide.

    Of other people's runs: gradients summed during the last backward pass (DDP), or weights gathered every micro-batch.
    """
    if w.gpus == 1:
        return 0.0
    if w.waits_for_exchange:
        sent = exchange_of(w, device)
        passing = sent.each_pass_bytes * sent.accumulation
        return sent.waiting_seconds + _shown(passing, sent.link, device, busy * fit["overlap"])
    link = w.link_bytes or link_bandwidth(device, w.nvlink)
    share = 2 * (w.gpus - 1) / w.gpus
    volume = share * w.params * (2 if w.pure else 4)
    hidden = busy / max(w.accumulation, 1) * fit["overlap"]  # the last micro-batch's backward pass
    if w.sharded:
        volume, hidden = 1.5 * share * w.params * 2 * w.accumulation, busy * fit["overlap"]
    return _shown(volume, link, device, hidden)


def _shown(volume: float, link: float, device: Device, hidden: float) -> float:
    """Of the seconds that so many bytes take, those that do not fit behind the work; what they take of the card's memory
    shows in any case, for the work needs it too."""
    return waiting(hidden, volume / link) + IN_MEMORY * volume / device.bandwidth


def link_bandwidth(device: Device, nvlinked: bool) -> float:
    """Bytes per second each way between cards: NVLink on boards that come with it, else PCIe 4.0 through the host.
    A bridge between two cards is bought apart and has to be named."""
    link = nvlink(device.name)
    return (
        link.bytes_per_second if nvlinked and link and link.joins == "all" else speed(DEFAULT_LINK)
    )
