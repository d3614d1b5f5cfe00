"""When Inductor's schedule makes and frees each buffer of a compiled graph; for memory_oracle.py."""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from kernel_traffic import moved_bytes
from torch.utils._ordered_set import OrderedSet

with warnings.catch_warnings():  # torch's own: Inductor imports a module that still uses torch.jit
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import DonatedBuffer, MultiOutput
    from torch._inductor.memory import (
        assign_memory_planning_info_for_scheduler_buffers,
        assign_memory_planning_info_for_scheduler_nodes,
        get_freeable_input_buf,
    )
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
    from torch._inductor.virtualized import V


class Kernel(NamedTuple):
    above: int  # bytes alive while it runs, above those at the call
    name: str
    inside: list[tuple[int, str]]  # these bytes by maker; freed inputs are negative
    launched: bool
    library: bool  # a matrix product, attention: not written by Inductor
    moved_bytes: int  # read and written, each number once


def schedule(graph: torch.fx.GraphModule, inputs: list[Any], backward: bool) -> list[Kernel]:
    """Every kernel with what is alive while it runs."""
    fake_mode = torch._guards.detect_fake_mode(inputs)
    compile_fx.view_to_reshape(graph)
    with V.set_fake_mode(fake_mode):
        compile_fx.fake_tensor_prop(graph, inputs)
        compile_fx._recursive_record_original_output_strides(graph)
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
        lowering = GraphLowering(graph, example_inputs=inputs, is_backward=backward)
        with DebugContext(), V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            return _play(lowering)


def _play(lowering: GraphLowering) -> list[Kernel]:
    nodes, scheduler = lowering.scheduler.nodes, lowering.scheduler
    outputs = set(lowering.get_output_names())
    freeable = get_freeable_input_buf(nodes, OrderedSet(lowering.graph_inputs))
    assign_memory_planning_info_for_scheduler_buffers(nodes, scheduler.name_to_buf)
    assign_memory_planning_info_for_scheduler_nodes(
        nodes, scheduler.name_to_fused_node, scheduler.name_to_buf, freeable
    )
    place = {node: index for index, node in enumerate(nodes)}
    dying: dict[int, list[_Dying]] = {}  # by the node that reads it last

    def last_read(buffer: Any) -> int | None:
        return max((place[node] for node in buffer.mpi_buffer.succ_nodes), default=None)

    for name, buffer in freeable.items():
        at = last_read(buffer)
        if name not in outputs and at is not None:
            reusable = isinstance(lowering.graph_inputs.get(name), DonatedBuffer) or _is_donated(
                lowering, name
            )
            dying.setdefault(at, []).append(_Dying(buffer.mpi_buffer.size_free, reusable, name))
    inside: dict[
        str, int
    ] = {}  # bytes above those at the call, by buffer; a freed input's are negative
    above: list[Kernel] = []
    for index, node in enumerate(nodes):
        new: dict[str, int] = {}
        for buffer in node.get_outputs():
            at = last_read(buffer)
            kept = buffer.get_name() in outputs
            if not kept and at is None:  # only read inside its own fused kernel: never in memory
                if not isinstance(node, ExternKernelSchedulerNode):
                    continue
                at = index
            name = f"{buffer.get_name()} {_name(node)} {_source(node)}"
            new[name] = buffer.mpi_buffer.size_alloc
            if not kept:
                reusable = at != index
                dying.setdefault(at, []).append(_Dying(buffer.mpi_buffer.size_free, reusable, name))
        gone = dying.get(index, [])
        if not isinstance(node, ExternKernelSchedulerNode | NopKernelSchedulerNode):
            for size in new.values():  # written in place over an input of the same size
                over = next((old for old in gone if old.reusable and old.bytes == size), None)
                if over and size and over.name not in new:
                    gone.remove(over)
                    inside[over.name] = inside.get(over.name, 0) - size
        inside.update(new)
        alive = [(size, name) for name, size in inside.items() if size]
        hidden = _hidden_in_node(node)
        total = sum(inside.values()) + hidden
        above.append(
            Kernel(
                total,
                _name(node),
                [*alive, (hidden, "hidden")],
                _is_launched(node),
                isinstance(node, ExternKernelSchedulerNode),
                moved_bytes(node),
            )
        )
        for old in gone:
            inside[old.name] = inside.get(old.name, 0) - old.bytes
    return above


@dataclass(frozen=True)
class _Dying:
    bytes: int
    reusable: bool  # an output of the same size may be written over it
    name: str


def _source(node: Any) -> str:
    """The operations of the model's graph that a kernel was made of."""
    parts = node.get_nodes() if hasattr(node, "get_nodes") else [node]
    origins = {str(o) for part in parts if part.node is not None for o in part.node.get_origins()}
    return "+".join(sorted(origins))


def _is_donated(lowering: GraphLowering, name: str) -> bool:
    box = lowering.graph_inputs.get(name)
    while hasattr(box, "data") and not isinstance(box, DonatedBuffer):
        box = box.data
    return isinstance(box, DonatedBuffer)


def _name(node: Any) -> str:
    kernel = getattr(getattr(node, "node", None), "python_kernel_name", None)
    return str(kernel or node.get_name())


def _is_launched(node: Any) -> bool:
    """Whether a kernel runs for it: not for one output of several, nor for parts that are written side by side."""
    return not isinstance(node, NopKernelSchedulerNode) and not isinstance(
        getattr(node, "node", None), MultiOutput
    )


def _hidden_in_node(node: Any) -> int:
    if "flash_attention_backward" not in _name(node):
        return 0
    q = node.node.inputs[1].get_size()
    batch, heads, length, width = (int(size) for size in q)
    rows = batch * heads * (-(-length // 128) * 128)
    return rows * 4 * (-(-width // 32) * 32) + rows * 4
