"""The oracle for peak memory: onecard's own model and train step, traced without data, every live byte counted.

Fake tensors have shapes and storages but no data, so GPT-2 XL can be traced on a laptop. They are `cpu` tensors, for
fake `cuda` ones abort in autograd where torch is built without CUDA; CPU autocast casts what CUDA's does (but for
softmax, which is put right here) and the fused attention kernels of CUDA are called by name.

>>> traced(RunConfig(n_layer=1, n_embd=64, n_head=4, block_size=64, vocab_size=512, compile=False), "bfloat16").bytes > 0
True

Compiled: Dynamo and AOTAutograd cut the graphs, Inductor lowers, fuses and orders them; its schedule says when each
buffer is made and last read. Nothing is compiled to machine code.
"""

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from inductor_schedule import Kernel, schedule
from torch import Tensor
from torch._inductor import compile_fx, ir
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from onecard.config import RunConfig
from onecard.model import gpt2 as model_module
from onecard.model import host, lean
from onecard.model.build import lowered, make_model
from onecard.model.gpt2 import GPT
from onecard.model.machine import Precision
from onecard.train.optim import make_optimizer, muon
from onecard.train.optim.sliced import SlicedOptimizer
from onecard.train.run.backward_updates import backward_updates
from onecard.train.run.faults import Faults
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.step import Stepper, gradient_sums
from onecard.train.run.trial import compile_options
from onecard.train.run.workers import Workers

ROUNDING = 512  # CUDA's allocator hands out multiples of this


@dataclass
class Traced:
    bytes: int
    at: str  # the operation during which the peak was reached
    moments: dict[str, int] = field(default_factory=dict)  # the peak inside each phase of the step
    tensors: list[tuple[int, str]] = field(default_factory=list)  # alive at the peak: bytes, maker
    kernels: int = 0  # of forward and backward passes, of all micro-batches
    host_bytes: int = 0  # the most there was in the computer's memory


LOSS = "chunked loss"  # the moment of the step


class Live(TorchDispatchMode):
    """Counts the bytes of storages that are alive; torch's own objects say when one dies."""

    def __init__(self, rounding: int = ROUNDING):
        super().__init__()
        self.rounding = rounding
        self.live = self.peak = 0
        self.at = ""
        self.moment = "setup"
        self.moments: dict[str, int] = {}
        self.log: list[tuple[str, str, int, int]] = []
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._alive: dict[int, tuple[int, str]] = {}
        self.at_peak: list[tuple[int, str]] = []
        self.kernels = 0
        self.on_host = False  # what is made now is the computer's memory, not the card's
        self.host = self.host_peak = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        answer = op(*args, **(kwargs or {}))
        if self.moment != "optimizer" and _is_kernel(op):
            self.kernels += 1
        before = self.live
        for tensor in tree_leaves(answer):
            if isinstance(tensor, Tensor):
                self.take(tensor, str(op))
        extra = _hidden_bytes(op, args)
        if op is torch.ops.aten.add.Tensor and torch._C._current_graph_task_id() != -1:
            extra -= (
                answer.nbytes
            )  # two gradients of one tensor: the engine adds in place, but not to a fake one
        self.mark(self.live + extra, str(op))
        if self.live != before:
            self.log.append((self.moment, str(op), self.live - before, self.live))
        return answer

    def take(self, tensor: Tensor, maker: str = "") -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen and self._seen[key]() is storage:
            return
        size = -(-storage.nbytes() // self.rounding) * self.rounding
        host = size if self.on_host else 0
        size -= host
        self.host += host
        self.host_peak = max(self.host_peak, self.host)

        def gone(_: Any) -> None:
            self.live -= size
            self.host -= host
            self._seen.pop(key, None)
            self._alive.pop(key, None)

        self._seen[key] = weakref.ref(storage, gone)
        self._alive[key] = (size, f"{self.moment}: {maker} {tuple(tensor.shape)}")
        self.live += size

    def run(self, kernel: Kernel) -> None:
        """One of a compiled graph."""
        self.kernels += kernel.launched
        self.mark(self.live + kernel.above, kernel.name, kernel.inside)
        self.log.append((self.moment, kernel.name, kernel.above, self.live + kernel.above))

    def mark(self, total: int, at: str, inside: list[tuple[int, str]] | None = None) -> None:
        self.moments[self.moment] = max(self.moments.get(self.moment, 0), total)
        if total > self.peak:
            self.peak, self.at = total, at
            self.at_peak = [*self._alive.values(), *(inside or [])]


def _is_kernel(op: Any) -> bool:
    """Whether an operation writes memory on a card: neither a view nor an allocation."""
    name = op.overloadpacket.__name__
    return op.namespace == "aten" and not (op.is_view or "view" in name or "empty" in name)


def _hidden_bytes(op: Any, args: tuple[Any, ...]) -> int:
    """What a CUDA kernel takes from the allocator and gives back before it returns."""
    if op is torch.ops.aten._scaled_dot_product_flash_attention_backward.default:
        batch, heads, length, width = args[
            1
        ].shape  # FlashAttention-2: dq summed in fp32, and one number a row
        rows = batch * heads * (-(-length // 128) * 128)
        return int(rows * 4 * (-(-width // 32) * 32) + rows * 4)
    if op is torch.ops.aten.logsumexp.default:  # works on a copy of its input, less the largest
        return int(args[0].nbytes)
    return 0


def _cuda_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
    """What CUDA's dispatcher chooses: FlashAttention in half precision, the memory-efficient kernel otherwise."""
    if torch.is_autocast_enabled("cpu"):
        lower = torch.get_autocast_dtype("cpu")
        q, k, v = q.to(lower), k.to(lower), v.to(lower)
    if attn_mask is None and q.dtype != torch.float32:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    bias = None
    if attn_mask is not None:  # convert_boolean_attn_mask and pad_bias of ATen's attention.cpp
        bias = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(
            attn_mask.logical_not(), -torch.inf
        )
        # CUDA expands it over the heads without a copy; Inductor would make one for a CPU, so it stays as it is
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, dropout_p, is_causal
    )[0]


@contextlib.contextmanager
def _as_on_cuda(mixed: bool) -> Iterator[None]:
    """Some functions do on a CPU what they would not do on a card."""
    originals = F.scaled_dot_product_attention, F.dropout, F.softmax
    own_gelu, own_is_cpu = model_module.MLP.activation, ir.is_cpu
    # for a CPU Inductor writes out every tanh, exp and log that is read twice; for a card it computes them again
    ir.is_cpu = lambda node: False
    # Muon's own code, with the dtype that it chooses on CUDA
    own_low_dtype, own_on_cpu = muon.fast_low_dtype, lean.on_cpu
    lean.on_cpu = lambda x: False
    muon.fast_low_dtype = lambda device, asked: torch.bfloat16
    model_module.MLP.activation = staticmethod(
        partial(F.gelu, approximate="tanh")
    )  # the trainer's own is for CPUs
    F.scaled_dot_product_attention = _cuda_attention
    F.dropout = lambda x, p=0.5, training=True, inplace=False: torch.native_dropout(x, p, training)[
        0
    ]  # keeps a mask of bytes
    if mixed:  # softmax is on CUDA's list of what autocast runs in fp32, and not on the CPU's
        F.softmax = lambda x, dim, **kw: torch.softmax(x.float(), dim)
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout, F.softmax = originals
        model_module.MLP.activation = staticmethod(own_gelu)
        ir.is_cpu, muon.fast_low_dtype, lean.on_cpu = own_is_cpu, own_low_dtype, own_on_cpu


@contextlib.contextmanager
def fake_stepper(
    config: RunConfig, dtype: str, live: Live, on_cuda: bool = True
) -> Iterator[tuple[GPT, Stepper]]:
    """The trainer's model and step without data, all they do seen by `live`."""
    mixed = dtype != "float32"
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Dynamo's own, about what it meets while tracing
        if on_cuda:
            stack.enter_context(_as_on_cuda(mixed))
            stack.enter_context(inductor_config.patch(cpu_backend="triton"))  # fuse as for a card
        fake = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = lowered(make_model(config), config)
        for parameter in model.parameters():
            live.take(parameter)
        stack.enter_context(live)
        stack.enter_context(_distinguished(live))
        yield model, _stepper(config, dtype, model, live, fake, stack)


def traced(config: RunConfig, dtype: str, on_cuda: bool = True) -> Traced:
    """The peak of the second step, when the optimizer's memory is there; two micro-batches stand for any number."""
    micro = min(2, config.gradient_accumulation_steps)
    live = Live(ROUNDING if on_cuda else 1)
    with fake_stepper(config, dtype, live, on_cuda) as (model, step):
        for number in range(2):
            # the first step only makes the optimizer's memory: one micro-batch has all gradients
            count = config.batch_size * (1 if number == 0 else micro)
            rows = torch.zeros(count, config.block_size + 1, dtype=torch.long)
            live.moment, live.peak, live.kernels = "loss", 0, 0
            if number == 0 and _adds_up_plainly(config):
                for parameter in model.parameters():
                    parameter.grad = torch.empty_like(parameter)
            else:
                step._accumulate(rows, number, seed=1)
            live.moment = "optimizer"
            step._clipped()
            if number == 0 and isinstance(step.optimizer, SlicedOptimizer):
                _make_state(step.optimizer)  # its arithmetic is that of the second step
            else:
                step.optimizer.step()
    moments = dict(live.moments)
    return Traced(live.peak, live.at, moments, live.at_peak, live.kernels, live.host_peak)


def _adds_up_plainly(config: RunConfig) -> bool:
    """Whether a first pass leaves nothing but gradients: no compiled code, no sums of their own."""
    plain = config.weights == config.gradients == "float32"
    return plain and not config.compile and not config.update_in_backward


def _make_state(optimizer: SlicedOptimizer) -> None:
    for group in optimizer.param_groups:
        names = ("momentum",) if group["muon"] else ("exp_avg", "exp_avg_sq")
        for parameter in group["params"]:
            optimizer._state(parameter, names)


def _stepper(
    config: RunConfig,
    dtype: str,
    model: GPT,
    live: Live,
    fake: FakeTensorMode,
    stack: contextlib.ExitStack,
) -> Stepper:
    """The trainer's own step, in a run of one process."""
    cpu = torch.device("cpu")
    precision = Precision(dtype, dtype == "float16", "")
    forward: Any = model

    def compiled_run(run: Any, moment: str | None = None) -> Any:
        compiled = torch.compile(run, backend=_Inductor(live, fake, moment), dynamic=False)

        def called(*inputs: Any) -> Any:
            with _disable_current_modes(), fake:  # Dynamo will not trace under a mode of ours
                return compiled(*inputs)

        return called

    if config.compile and not lean.on_cpu(model.lm_head.weight):
        model.compile_loss(partial(compiled_run, moment=LOSS))
    if config.compile and config.compile_unit == "block":
        # beyond the limit layers would run eager, uncounted
        stack.enter_context(torch._dynamo.config.patch(recompile_limit=256))
        model.compile_blocks(compiled_run)
    elif config.compile:
        _count_the_loss(model, live)
        stack.enter_context(inductor_config.patch(**compile_options(config, precision)))
        forward = compiled_run(model)

    optimizer = make_optimizer(config, model)
    sums = gradient_sums(config, model, model)
    return Stepper(
        config,
        model,
        forward,
        optimizer,
        torch.amp.GradScaler("cpu", enabled=dtype == "float16"),
        precision,
        Workers("auto", cpu),
        config.batch_size,
        RowMarks(0 if config.mask_documents else None),
        Faults(),
        lambda before, now: None,
        sums,
        backward_updates(model, optimizer) if config.update_in_backward else None,
    )


@contextlib.contextmanager
def _distinguished(live: Live) -> Iterator[None]:
    """Tensors of the host are counted by themselves: all of them are made by two functions. The blocks that the optimizer's
    are cut from are not: of these it is the tensors that count."""
    room_like, take = host.room_like, host.HostRoom.take

    def counted(tensor: Tensor) -> Tensor:
        live.on_host = True
        try:
            return room_like(tensor)
        finally:
            live.on_host = False

    host.room_like = counted
    host.HostRoom.take = lambda room, shape, dtype: counted(
        torch.empty(shape, dtype=dtype, device="meta")
    )
    try:
        yield
    finally:
        host.room_like, host.HostRoom.take = room_like, take


def _count_the_loss(model: GPT, live: Live) -> None:
    """The chunked loss is called from the compiled model but runs eagerly: count there."""
    original = model._chunked_loss

    @torch.compiler.disable
    def counted(*inputs: Tensor, **options: Any) -> Tensor:
        live.moment = LOSS
        with live:
            return original(*inputs, **options)

    model._chunked_loss = counted


class _Inductor:
    """A backend for torch.compile that does all but write machine code, and plays the schedule's buffers to `live`."""

    def __init__(self, live: Live, fake: FakeTensorMode, moment: str | None = None):
        self.live = live
        self.fake = fake
        self.moment = moment  # None: forward or backward

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_fx.compile_fx(graph, inputs, inner_compile=self.inner)

    def inner(self, graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        backward = bool(options.get("is_backward"))
        with _disable_current_modes():
            above = schedule(graph, inputs, backward)
        live, fake = self.live, self.fake

        def call(arguments: list[Any]) -> Any:
            with _disable_current_modes(), fake:
                answer = graph(*arguments)
            direction = "backward" if backward else "forward"
            live.moment = self.moment or f"compiled {direction}"
            for kernel in above:
                live.run(kernel)
            for tensor in tree_leaves(answer):
                if isinstance(tensor, Tensor):
                    live.take(tensor, "compiled graph")
            live.moment = self.moment or "after the compiled graph"
            return answer

        call._boxed_call = True  # it may let go of its inputs, as Inductor's code does
        return call
