"""How the declarations of block.py become tensors that are born and die: the rules of recomputing and compiling.

>>> from onecard.planner.memory.timeline import LAYER_PLACES
>>> from onecard.planner.workload import Workload
>>> work = Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4, compiled=False)
>>> layer = Layer(Sizes(work))
>>> layer.makes("c_fc output", 100, made="up", used="activation", saved="activation")
>>> [(tensor.name, LAYER_PLACES[tensor.born], LAYER_PLACES[tensor.dies]) for tensor in layer.tensors]
[('c_fc output', 'up', 'activation back')]
"""

from onecard.planner.memory.sizes import Sizes
from onecard.planner.memory.timeline import AGAIN, BACKWARD, END, FORWARD, Tensor


class Layer:
    """Collects the tensors of one layer."""

    def __init__(self, sizes: Sizes):
        work = sizes.work
        self.sizes = sizes
        self.work = work
        self.compiled = work.compiled
        self.recompute = work.recompute
        # with the costly outputs kept, a compiled backward pass recomputes each of the others when it is needed
        self.lazy = work.compiled and work.recompute == "cheap"
        # fp8: compiled, each backward product rounds its operands to 8 bits again, from what is kept anyway
        self.rounds_again = work.fp8 and work.compiled and work.recompute == "none"
        self.tensors: list[Tensor] = []

    def makes(
        self,
        name: str,
        size: int,
        made: str,
        used: str,
        saved: str | None = None,
        eager_only: bool = False,
        costly: bool = False,
    ) -> None:
        """Made by an operation, used until another, read by the backward pass of `saved`; `eager_only`: fused away if compiled;
        `costly`: an output of a matmul or attention (_COSTLY in model/run_blocks.py), which recompute = "cheap" keeps.

        Without recomputation it lives from `made` to the backward pass of `saved`. With "block" it lives to `used`, and
        again from its second making to that backward pass. With "cheap" the costly ones live as without recomputation;
        the others as with "block" in eager code, and compiled (`lazy`) only at the backward operation that reads them.
        """
        if not size or (eager_only and self.compiled):
            return
        born, last = FORWARD[made], FORWARD[used]
        if self.recompute == "none":
            self._lives(name, size, born, BACKWARD[saved] if saved else last)
            return
        last_again = AGAIN[used] if not self.lazy else BACKWARD["norm_1"]
        dies = BACKWARD[saved] if saved else last_again
        if self.recompute == "cheap" and costly:
            self._lives(name, size, born, dies)
            return
        self._lives(name, size, born, last)
        if not self.lazy:
            self._lives(name, size, AGAIN[made], dies)
        elif saved:
            self._lives(name, size, dies, dies)

    def operand(self, name: str, size: int, made: str, matmul: str, kept: bool = False) -> None:
        """The input of a matmul, which its backward pass reads; `kept`: even where others are rounded to 8 bits again."""
        if self.rounds_again and not kept:
            self.makes(name, size, made, matmul)
            self.back(f"{name}, again", size, matmul, matmul)
        else:
            self.makes(name, size, made, matmul, matmul)

    def back(self, name: str, size: int, made: str, used: str) -> None:
        """Made by the backward pass of an operation, used until that of another."""
        if size:
            self._lives(name, size, BACKWARD[made], BACKWARD[used])

    def keeps_input(self, for_backward: bool) -> None:
        """The layer's input: the output of the layer below, which is not counted as its own."""
        dies = BACKWARD["norm_1"] if for_backward else FORWARD["add_2"]
        born = FORWARD["norm_1"]
        if self.work.host_inputs:  # on the card only while the layer is at work
            self._lives("layer input", self.sizes.residual, born, FORWARD["add_2"])
            born = AGAIN["norm_1"]
        self._lives("layer input", self.sizes.residual, born, dies)

    def matrix(self, name: str, inputs: int, outputs: int, matmul: str) -> None:
        """What a step makes of a weight matrix: a half-precision copy, a half-precision gradient, and the gradient that is
        kept or added to the sum."""
        sizes = self.sizes
        at = BACKWARD[matmul]
        if sizes.gathers:  # reduced and scattered when the layer is done
            numbers = sizes.matmul * inputs * outputs
            self._lives(f"{name} gradient", numbers, at, BACKWARD["norm_1"], "gradients")
            return
        if sizes.mixed:
            half = sizes.matmul * inputs * outputs
            cast = f"{matmul}_cast"
            born = FORWARD[cast] if self.recompute == "none" else AGAIN[cast]
            if self.lazy or self.rounds_again:
                born = at
            if sizes.casts:
                self._lives(f"{name} cast", half, born, at, "cast_weights")
            elif self.compiled:  # cast when it is added to the others
                self._lives(f"{name} gradient", half, at, self._handed_over, "gradients")
                return
            self._lives(f"{name} gradient in half precision", half, at, BACKWARD[cast], "gradients")
            at = BACKWARD[cast]
        whole = sizes.exact * (inputs + self.work.bias) * outputs
        # a compiled graph gives all its gradients back at its end; eager, each is added to the sum at once, if there is one
        ends = self._handed_over if self.compiled or not self.work.gradients_freed_at_once else at
        self._lives(f"{name} gradient", whole, at, ends, "gradients")

    @property
    def _handed_over(self) -> int:
        """Where the gradients of a compiled graph die: at its end, where they are added to the sum, or at the step's end where
        there is no sum."""
        return (
            BACKWARD["norm_1"] if self.work.by_block and self.work.gradients_freed_at_once else END
        )

    def _lives(self, name: str, size: int, born: int, dies: int, part: str = "activations") -> None:
        self.tensors.append(Tensor(name, part, size, born, dies))
