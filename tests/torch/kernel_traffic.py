"""The bytes that a kernel of Inductor's schedule reads and writes, every number once; for inductor_schedule.py.

Inductor's own count (get_read_write_buffer_accesses) takes the whole of a buffer of which a part is read: queries, keys and
values where it is the values alone. What several indices of one kernel touch, such as a position and the three before it,
is counted on a map of the buffer.
"""

import math
import warnings
from typing import Any

import numpy as np
import sympy
from torch.utils._pytree import tree_leaves

with warnings.catch_warnings():  # torch's own: Inductor imports a module that still uses torch.jit
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
    from torch._inductor.virtualized import V

LARGEST_MAP = 2**26  # numbers; of a larger buffer as much as all indices read together


def moved_bytes(node: Any) -> int:
    if isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, MultiOutput):
        return 0
    if isinstance(node, ExternKernelSchedulerNode):
        return _of_call(node)
    parts = set(node.get_nodes())
    inside = set()  # what is handed from one part to another and read by nobody else
    for part in parts:
        for buffer in part.get_outputs():
            if {user.node for user in buffer.users} <= parts:
                inside.add(buffer.get_name())
    made = {buffer.get_name() for part in parts for buffer in part.get_outputs()}
    passes = max(_product(part.get_ranges()) for part in parts)
    reads = [dep for dep in node.read_writes.reads if dep.name not in made]
    writes = [dep for dep in node.read_writes.writes if dep.name not in inside]
    return _of_dependencies(reads, passes) + _of_dependencies(writes, passes)


def _of_call(node: Any) -> int:
    """Of a library: its operands as they are given, its results."""
    operands = [leaf for leaf in tree_leaves(node.node.inputs) if hasattr(leaf, "get_stride")]
    several = [
        user.node.node
        for buffer in node.get_outputs()
        for user in buffer.users
        if isinstance(getattr(user.node, "node", None), MultiOutput)
    ]
    results = several or [
        node.scheduler.name_to_buf[dep.name].node for dep in node.read_writes.writes
    ]
    return sum(map(_tensor_bytes, operands + results))


def _tensor_bytes(tensor: Any) -> int:
    """An expanded dimension once."""
    lengths = zip(tensor.get_size(), tensor.get_stride(), strict=True)
    return math.prod(_number(n) for n, stride in lengths if stride) * tensor.get_dtype().itemsize


def _of_dependencies(dependencies: list[Any], passes: int) -> int:
    by_buffer: dict[str, list[Any]] = {}
    for dependency in dependencies:
        if isinstance(dependency, WeakDep):  # only an order: to write after somebody has read
            continue
        by_buffer.setdefault(dependency.name, []).append(dependency)
    return sum(
        V.graph.get_dtype(name).itemsize
        * _touched(several, _number(V.graph.get_numel(name)), passes)
        for name, several in by_buffer.items()
    )


def _touched(dependencies: list[Any], whole: int, passes: int) -> int:
    """How many numbers of a buffer; a table that is looked up: a row for each that is asked for."""
    known = [
        passes if isinstance(dep, StarDep) or dep.is_indirect() else _number(dep.get_numel())
        for dep in dependencies
    ]
    if max(known) >= whole or len(known) == 1 or whole > LARGEST_MAP:
        return min(sum(known), whole)
    indices = [_indices(dep) for dep in dependencies]
    if any(index is None for index in indices):
        return min(sum(known), whole)
    touched = np.zeros(whole, bool)
    for index in indices:
        # what lies outside is not read: the rim of a padded tensor
        touched[index[(index >= 0) & (index < whole)]] = True
    return int(touched.sum())


def _indices(dependency: Any) -> np.ndarray | None:
    """All that a sum of loop variables and their strides takes on; None where the index is anything else."""
    names, lengths = dependency.var_names, dependency.size
    index = sympy.expand(dependency.index)
    strides = [index.coeff(name) for name in names]
    rest = sympy.expand(index - sum(a * b for a, b in zip(strides, names, strict=True)))
    if not rest.is_integer or rest.free_symbols or any(s.free_symbols for s in strides):
        return None
    found = np.full(1, int(rest))
    for length, stride in zip(lengths, strides, strict=True):
        if stride:
            found = (found[:, None] + int(stride) * np.arange(_number(length))).ravel()
    return found


def _product(ranges: Any) -> int:
    return math.prod(_number(length) for part in ranges for length in part)


def _number(length: Any) -> int:
    """Of a size that may be different in the next call: what it is in this one."""
    return int(V.graph.sizevars.optimization_hint(length, fallback=0))
