"""A model sharded over the processes by torch's FSDP2: each keeps some rows of every matrix and table.

`shard = "full"`: the weights of a layer are gathered when it is computed, forward and backward, in every micro-batch.
`shard = "grads"`: gathered once a step and kept until its last backward pass. Either way each process keeps its part of
the gradients, the moments and the fp32 weights. Vectors (norms, biases) are whole everywhere, in fp32 as under autocast.

On several machines the cards of each shard one copy of the model, and equal parts are added up between the machines
once a step, as without sharding. All exchanges within passes go through exchanges.py.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.gpt2 import GPT
from onecard.model.machine import Precision, autocast
from onecard.model.out_of_memory import is_out_of_memory
from onecard.torchrun import local_process_count
from onecard.train.optim.sharded_rows import Slices, is_cut
from onecard.train.run.exchanges import Exchanges, Gather, Scatter
from onecard.train.run.workers import OthersFailedError, WorkerLostError, Workers, guarded

_SHORT = 16  # tokens of the row by which exchanges are noted; fp8's products take them by 16


class LocalWeights(nn.Module):
    """What this process keeps, by the parameters' own names: plain tensors for optimizer, norm and checkpoint."""

    def __init__(self, named: Mapping[str, nn.Parameter]):
        super().__init__()
        self._named = dict(named)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._named.items()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield from self._named.values()


class Sharding:
    """One model, sharded. `model` is changed in place."""

    def __init__(
        self,
        model: GPT,
        config: RunConfig,
        precision: Precision,
        workers: Workers,
        mesh: Any = None,
    ):
        self.model: Any = model
        self.failed_together = False  # by an error that all processes know of
        self._config, self._precision, self._workers = config, precision, workers
        mesh = mesh or mesh_of(workers)
        self._shards, self._copies = mesh["card"], mesh["machine"]
        group = self._shards.get_group()
        staged = workers.device.type != "cpu" and not workers.on_card
        self._exchanges = Exchanges(group, staged, guarded)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.slices = Slices.cut(
            shapes, self._shards.get_local_rank(), self._shards.size(), swap=self._exchanges.swap
        )
        self._shard(config.shard == "full")
        self._note_exchanges()
        self._dtensors: dict[str, Any] = {
            name: p for name, p in model.named_parameters() if name in self.slices.of
        }
        whole = {name: p for name, p in model.named_parameters() if name not in self.slices.of}
        self.local = LocalWeights(
            {
                name: whole[name] if name in whole else _local(self._dtensors[name])
                for name in shapes
            }
        )

    def _shard(self, again_backward: bool) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        low = None if self._precision.dtype == "float32" else getattr(torch, self._precision.dtype)
        vectors = {p for name, p in self.model.named_parameters() if not is_cut(name, p.dim())}
        more: dict[str, Any] = {
            "mesh": self._shards,
            # the layers' inputs are left as they are: autocast casts them, and the stream stays exact
            "mp_policy": MixedPrecisionPolicy(low, torch.float32, cast_forward_inputs=False),
            "ignored_params": vectors,
        }
        for vector in vectors:
            vector.data = vector.data.to(self._workers.device)
        for block in self.model.transformer.h:
            fully_shard(block, reshard_after_forward=again_backward, **more)
        fully_shard(self.model, reshard_after_forward=False, **more)
        for module in (self.model, *self.model.transformer.h):
            module.set_custom_all_gather(Gather(self._exchanges))
            module.set_custom_reduce_scatter(Scatter(self._exchanges))
            # gradients are summed; the loss is a mean
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
        self.model.register_forward_pre_hook(self._begin_pass, prepend=True)

    def _begin_pass(self, *_: Any) -> None:
        last = self._exchanges.next_pass()
        if self._config.shard == "grads":
            self.model.set_reshard_after_backward(last)

    def _note_exchanges(self) -> None:
        """One short row, forward and backward, twice; then without gradients."""
        device = self._workers.device
        rows = torch.zeros(1, min(_SHORT, self._config.block_size) + 1, device=device).long()
        inputs, targets = rows[:, :-1], rows[:, 1:].contiguous()
        for reading in (False, True):
            self._exchanges.open(self._names(2, reading))
            for _ in range(2):
                with torch.set_grad_enabled(not reading), autocast(device, self._precision):
                    loss = self.model(inputs, targets)[1]
                if not reading:
                    loss.backward()
            self.reset()
        self._exchanges.all_known()

    @staticmethod
    def _names(count: int, reading: bool) -> list[str]:
        """The first pass gathers what later ones may find gathered."""
        kind = "read" if reading else "step"
        return [f"{kind} first", *[f"{kind} next"] * (count - 1)]

    @contextlib.contextmanager
    def passes(self, count: int, reading: bool = False) -> Iterator[None]:
        """Around as many calls of the model, the same number in all processes; with a backward pass each, or reading.

        Whatever fails here fails after all exchanges with the others are made: the caller lets them know.
        """
        self._exchanges.open(self._names(count, reading))
        try:
            yield
        except WorkerLostError:
            raise
        except Exception:
            self.reset()
            self._exchanges.take_part_in_rest(self._workers.device)
            raise
        if reading:
            self.reset()

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return self._workers.any(flag)[0]

    def fail_together(self, failed: bool, error: Exception | None) -> None:
        """Where a process failed, as all know by now: its error here, if it was this one, or that another has it."""
        self.failed_together = failed
        if error is not None:
            raise error
        if failed:
            raise OthersFailedError

    def reset(self) -> None:
        """Nothing gathered, no gradients, no pass under way."""
        self._forget_gradients()  # of weights that are gathered, which a broken pass leaves
        self.model.reset_iter_state()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None

    def passes_of(self, rows: int, micro_batch: int) -> int:
        """How many passes every process makes over its part of so many rows."""
        most = -(-rows // self._workers.processes)
        return -(-most // micro_batch)

    def add_gradients(self) -> None:
        """The gradients where the optimizer looks for them, summed over machines; vectors' over all processes."""
        local = dict(self.local.named_parameters())
        for name, dtensor in self._dtensors.items():
            assert dtensor.grad is not None
            local[name].grad = dtensor.grad.to_local()
            dtensor.grad = None
        if self._copies.size() > 1:
            mine = [local[name] for name in self._dtensors]
            self._workers.add_gradients(mine, self._copies.get_group())
        self._workers.add_gradients([p for name, p in local.items() if name not in self._dtensors])

    def norm(self) -> Tensor:
        """Of all gradients together."""
        named = list(self.local.named_parameters())
        cut = [p.grad for name, p in named if name in self._dtensors and p.grad is not None]
        whole = [p.grad for name, p in named if name not in self._dtensors and p.grad is not None]
        squares = torch.stack(torch._foreach_norm(cut)).square().sum()
        squares = self._workers.add(squares) / self._copies.size()
        if whole:
            squares = squares + torch.stack(torch._foreach_norm(whole)).square().sum()
        return squares.sqrt()

    def whole_model(self) -> GPT | None:
        """A copy of the whole model in the first process, on the host; None in the others. All must call it.

        Where the first has no room for it, all raise that."""
        group, first = self._shards.get_group(), self._workers.first
        copy, error = None, None
        try:
            copy = self._empty_model() if first else None
        except Exception as failure:  # others are waiting
            error = failure
        if self._workers.any(error is not None)[0]:
            raise MemoryError(
                "the first process has no room for a copy of the whole model"
            ) from error
        targets: dict[str, Any] = {} if copy is None else dict(copy.named_parameters())
        leader = dist.get_global_rank(group, 0)
        for name, local in self.local.named_parameters():
            part = self.slices.of.get(name)
            if part is None:
                if first:
                    targets[name].data.copy_(local.detach())
                continue
            each = -(-part.shape[0] // self.slices.count)
            sent = torch.zeros(each, *part.shape[1:])
            sent[: part.rows] = local.detach().cpu()
            got = [torch.empty_like(sent) for _ in range(self.slices.count)]
            with guarded():
                dist.gather(sent, got if self.slices.index == 0 else None, leader, group=group)
            if first:
                targets[name].data.copy_(torch.cat(got)[: part.shape[0]])
        return None if copy is None else copy.eval()

    def _empty_model(self) -> GPT:
        with torch.device("meta"):
            empty = make_model(self._config)
        empty.to_empty(device="cpu")
        if self._config.tied:
            empty.lm_head.weight = empty.transformer.wte.weight
        return empty


def sharding_of(config: RunConfig, model: GPT, precision: Precision, workers: Workers) -> Sharding:
    """As the config wants the model sharded."""
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise UserError(
            f"shard = {config.shard!r} needs torch 2.13 or newer, and this is {torch.__version__}",
            hint="shard = 'none' works with any",
        )
    return Sharding(model, config, precision, workers)


def within_memory(
    work: Callable[[], Tensor], workers: Workers, sharding: Sharding | None
) -> Tensor | None:
    """What `work` gives; None where memory ran out in any process. Processes with a sharded model end together where
    one of them met another error."""
    result, error = None, None
    try:
        result = work()
    except Exception as failure:
        if sharding is None and not is_out_of_memory(failure):
            raise
        if not is_out_of_memory(failure):
            error = failure
    # outside the except clause, whose traceback would keep the failed work's tensors alive
    ran_out, failed = workers.any(result is None, error is not None)
    if sharding is not None:
        sharding.fail_together(failed, error)
    return None if ran_out else result


def cards_of_machine(workers: Workers) -> int:
    """How many processes shard one copy of the model: those of a machine, or all where machines have one each or
    not equally many. All must call it."""
    here = local_process_count(otherwise=workers.processes)
    total = int(workers.add(torch.tensor(here)).item())
    even = here > 1 and total == here * workers.processes and workers.processes % here == 0
    return here if even else workers.processes


def mesh_of(workers: Workers) -> Any:
    """Machines × cards."""
    from torch.distributed.device_mesh import init_device_mesh

    each = cards_of_machine(workers)
    shape = workers.processes // each, each
    return init_device_mesh(workers.device.type, shape, mesh_dim_names=("machine", "card"))


def _local(dtensor: Any) -> nn.Parameter:
    """The rows that this process keeps, sharing memory with FSDP2's own."""
    rows = dtensor.to_local()
    parameter = nn.Parameter(rows.detach())
    assert parameter.data_ptr() == rows.data_ptr()
    return parameter
