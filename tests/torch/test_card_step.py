"""What a step of the modern recipe gives a card to do, beside one of GPT-2's: counted in traces, no card is needed."""

import functools

import pytest
import torch
from inductor_schedule import compile_fx, schedule
from launch_oracle import Parts, Work, flops_share, step_work, work_of
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from traced_settings import SMALL

from onecard.config.recipes import recipe_values

MOST = 1.1  # times GPT-2's, beyond the modern recipe's extra FLOPs
FIGURES = ("kernels", "calls", "moved_bytes")
MANY = 60  # micro-batches of a step, as many as `recommend` writes
THOUSAND = 1000 * 4  # bytes of a thousand numbers


def compiled(recipe, layers):
    own = {**recipe_values(recipe), "recipe": recipe, "n_layer": layers}
    return SMALL.replace(**own, compile=True, chunked_loss=True)


@functools.cache
def worked(recipe, layers):
    return step_work(compiled(recipe, layers), "bfloat16")


def whole(parts: Parts, without=""):
    return sum((work for part, work in parts.items() if part != without), Work())


def test_a_modern_layer_gives_a_card_hardly_more_to_do():
    """One layer of four less two, forward and back: Inductor fuses norms in pairs of layers."""
    one, other = (
        (whole(worked(recipe, 4).next) - whole(worked(recipe, 2).next)) * 0.5
        for recipe in ("gpt2", "modern")
    )
    for figure in FIGURES:
        assert getattr(other, figure) <= MOST * getattr(one, figure), figure


@pytest.mark.parametrize("figure", ["kernels", "calls"])
def test_a_step_of_many_micro_batches_is_within_the_goal(figure):
    one, other = (getattr(worked(each, 2).of_step(MANY), figure) for each in ("gpt2", "modern"))
    assert other <= MOST * flops_share(compiled("modern", 2), MANY) * one


def test_the_first_micro_batch_adds_to_no_gradients():
    found = worked("gpt2", 2)
    parts = [phase["gradients added up"] for phase in (found.first, found.next)]
    assert parts[0].kernels < parts[1].kernels
    assert parts[0].moved_bytes < parts[1].moved_bytes
    assert {part: work for part, work in found.first.items() if part != "gradients added up"} == {
        part: work for part, work in found.next.items() if part != "gradients added up"
    }


def numbers(*shape):
    return torch.zeros(shape)


def added(**more):
    return lambda: torch.addmm(numbers(10, 10), numbers(10, 100), numbers(100, 10), **more)


def several(count):
    return [numbers(1000) for _ in range(count)]


@pytest.mark.parametrize(
    ("call", "work"),
    [
        (lambda: numbers(1000) + 1, Work(1, 0, 2 * THOUSAND)),
        (lambda: numbers(1000) + numbers(1000), Work(1, 0, 3 * THOUSAND)),
        (lambda: numbers(1000).mul_(numbers(1000)), Work(1, 0, 3 * THOUSAND)),
        (lambda: numbers(1000).copy_(numbers(1000)), Work(1, 0, 2 * THOUSAND)),
        (lambda: numbers(1).expand(1000) + 1, Work(1, 0, 4 + THOUSAND)),
        (lambda: numbers(10, 100) @ numbers(100, 10), Work(0, 1, 2 * THOUSAND + 400)),
        # what is added is copied into the result first, unless it counts nothing
        (added(), Work(1, 1, 2 * THOUSAND + 2 * 400 + 800)),
        (added(beta=0), Work(0, 1, 2 * THOUSAND + 400)),
        (
            lambda: torch._foreach_add_(several(3), several(3)),
            Work(1, 0, 9 * THOUSAND),
        ),
        (
            lambda: torch._foreach_mul_(several(1000), 0.5),
            Work(2, 0, 2000 * THOUSAND),
        ),
        (lambda: torch.cat(several(10)), Work(1, 0, 20 * THOUSAND)),
    ],
)
def test_an_operation_reads_and_writes_each_number_once(call, work):
    assert last_work(call) == work


def test_an_operand_given_twice_is_read_once():
    twice = numbers(1000)
    assert last_work(lambda: twice.mul(twice)) == Work(1, 0, 2 * THOUSAND)


def last_work(call):
    """Of the last operation of `call`."""
    found = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            answer = op(*args, **(kwargs or {}))
            found.append(work_of(op, args, kwargs or {}, answer))
            return answer

    with Watched():
        call()
    return found[-1]


def kernels_of(function, *inputs):
    """Of Inductor's schedule for it; it is not run."""
    found = []

    def inner(graph, inputs, **options):
        with _disable_current_modes():
            found.extend(schedule(graph, inputs, backward=False))

        def answer(arguments):
            return graph(*arguments)

        answer._boxed_call = True
        return answer

    torch._dynamo.reset()
    backend = functools.partial(compile_fx.compile_fx, inner_compile=inner)
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return [kernel for kernel in found if kernel.moved_bytes]


@pytest.mark.parametrize(
    ("function", "inputs", "moved_bytes"),
    [
        (lambda x: (x + 1).exp() * 2, [numbers(1000)], [2 * THOUSAND]),  # one kernel
        (lambda x, y: (x * y, x - y), [numbers(1000), numbers(1000)], [4 * THOUSAND]),
        # a third of what lies there, and what lies beside it at a distance
        (lambda x: x.view(10, 3, 100)[:, 2] * 2, [numbers(3000)], [2 * THOUSAND]),
        (lambda x: x[1:] - x[:-1], [numbers(1001)], [2 * THOUSAND + 4]),
        # rows that are looked up, by numbers of eight bytes
        (
            lambda table, at: table[at] + 1,
            [numbers(5000, 100), torch.arange(10)],
            [2 * THOUSAND + 80],
        ),
        (lambda x, y: x @ y, [numbers(10, 100), numbers(100, 10)], [2 * THOUSAND + 400]),
    ],
)
def test_a_kernel_of_the_schedule_reads_and_writes_each_number_once(function, inputs, moved_bytes):
    assert [kernel.moved_bytes for kernel in kernels_of(function, *inputs)] == moved_bytes


def test_products_are_the_librarys():
    found = kernels_of(lambda x, y: (x @ y).exp(), numbers(10, 100), numbers(100, 10))
    assert [kernel.library for kernel in found] == [True, False]
