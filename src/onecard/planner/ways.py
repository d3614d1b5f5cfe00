"""Each way of sharing a model out over several cards: memory of a card, step time, and the exchange apart."""

from onecard.config import RunConfig
from onecard.config.key_lists import choices
from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.facts.links import Links
from onecard.planner.exchange import exchange_of
from onecard.planner.memory import peak_memory
from onecard.planner.result import ShardWay
from onecard.planner.step_time import workload_time
from onecard.planner.workload import Workload


def ways(
    config: RunConfig, device: Device, dtype: str, gpus: int, nodes: int, link: Links
) -> list[ShardWay]:
    """A way that the config's other keys exclude is left out."""
    tried: list[ShardWay] = []
    for way in choices("shard"):
        try:
            changed = config.replace(shard=way)
        except UserError:
            continue
        work = Workload.on(device, changed, dtype, gpus, nodes, link)
        time = workload_time(work, device)
        memory = peak_memory(changed, device, dtype, gpus, advice=False, nodes=nodes)
        tried.append(
            ShardWay(
                way,
                memory.process_bytes.mid,
                memory.fits,
                time.seconds,
                exchange_of(work, device).seconds,
                time.parts["exchange"],
            )
        )
    return tried
