"""The memory of a step as tensors that are born and die, and the sweep that finds where most of them are alive.

A step goes through PLACES in order. Two of these, "layers" and "layers_back", are gone through once for every layer;
inside them a layer's own tensors live by the places of LAYER_PLACES: its operations forward, the same done again where
they are recomputed, and their backward passes in the opposite order.

>>> stream = Tensor("input", "activations", 10, FORWARD["norm_1"], BACKWARD["norm_1"])
>>> logits = Tensor("logits", "logits_and_loss", 25, PLACES.index("head"), PLACES.index("head_back"))
>>> moment = sweep([stream], [logits], layers=3).peak()
>>> moment.bytes, moment.place, moment.layers_kept
(55, 'head', 3)
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

# The operations of a layer, as in the blocks' forward functions. Written-out attention is four of them; a fused kernel
# is "attention" alone.
_OPERATIONS = """
    norm_1 qkv_cast qkv rotation scores softmax dropout_0 attention projection_cast projection
    dropout_1 add_1 norm_2 up_cast up activation down_cast down dropout_2 add_2
"""
# The step around the layers. "graph_end" is where a compiled backward pass hands its gradients over.
_PLACES = """
    embedding layers norm head loss loss_back head_back head_cast_back norm_back layers_back
    embedding_back graph_end optimizer
"""
OPERATIONS, PLACES = _OPERATIONS.split(), _PLACES.split()
PARTS = ("weights", "gradients", "optimizer", "cast_weights", "activations", "logits_and_loss")
PLACE = {name: index for index, name in enumerate(PLACES)}
_LAYERS, _LAYERS_BACK, _OPTIMIZER = (PLACE[name] for name in ("layers", "layers_back", "optimizer"))
_OUTSIDE = [place for place in range(len(PLACES)) if place not in (_LAYERS, _LAYERS_BACK)]
_COUNT = len(OPERATIONS)
END = 3 * _COUNT  # beyond a layer's own backward pass: gradients that stay
FORWARD = {name: index for index, name in enumerate(OPERATIONS)}
AGAIN = {name: _COUNT + index for name, index in FORWARD.items()}
BACKWARD = {name: END - 1 - index for name, index in FORWARD.items()}
LAYER_PLACES = (
    *OPERATIONS,
    *(f"{name} again" for name in OPERATIONS),
    *(f"{name} back" for name in reversed(OPERATIONS)),
)


class Tensor(NamedTuple):
    """Alive from the place it is born at to the place it dies at, both included."""

    name: str
    part: str  # one of PARTS
    bytes: int
    born: int
    dies: int


class OutsideLayers:
    """Collects the tensors of a step that belong to no layer; layer.py's Layer collects those of one layer."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def lives(self, name: str, part: str, size: int, born: str, dies: str) -> None:
        if size:
            self.tensors.append(Tensor(name, part, size, PLACE[born], PLACE[dies]))


class Moment(NamedTuple):
    bytes: int
    place: str
    layer: int | None  # which layer is at work; None outside of them
    # other layers whose backward pass is still to come: their kept tensors are alive
    layers_kept: int
    layers_done: int  # other layers whose backward pass is done: their gradients are alive
    inside: int | None = None  # index in LAYER_PLACES


class Step(NamedTuple):
    """All tensors of a step, and how many bytes are alive at each place."""

    layer_tensors: Sequence[Tensor]
    tensors: Sequence[Tensor]
    layers: int
    inside: list[int]  # bytes of one layer's own tensors, by LAYER_PLACES
    around: list[int]  # bytes of all others, by PLACES
    kept: int  # bytes a layer keeps from its forward to its backward pass
    gradients_left: int  # bytes a layer's backward pass leaves behind

    def peak(self) -> Moment:
        """The place where most bytes are alive. What is alive at a place inside a layer changes evenly from layer to layer,
        so only the first and the last layer are looked at."""
        forward, back = self.inside[:_COUNT], self.inside[_COUNT:]
        forward_at, back_at = forward.index(max(forward)), _COUNT + back.index(max(back))
        last = self.layers - 1
        places: list[tuple[int, int | None, int | None]] = [
            (_LAYERS, last, forward_at),
            (_LAYERS_BACK, last, back_at),
            (_LAYERS_BACK, 0, back_at),
            *((place, None, None) for place in _OUTSIDE),
        ]
        return self._moment(*max(places, key=lambda at: self._bytes(*at)))

    def moments(self) -> Iterator[Moment]:
        """Every place of the step in order, those inside a layer once for each layer."""
        for place, name in enumerate(PLACES):
            if name == "layers":
                for layer in range(self.layers):
                    yield from (self._moment(place, layer, at) for at in range(_COUNT))
            elif name == "layers_back":
                for layer in reversed(range(self.layers)):
                    yield from (self._moment(place, layer, at) for at in range(_COUNT, END))
            else:
                yield self._moment(place)

    def _bytes(self, place: int, layer: int | None = None, inside: int | None = None) -> int:
        keeping, done = self._others(place, layer)
        own = 0 if inside is None else self.inside[inside]
        return self.around[place] + own + keeping * self.kept + done * self.gradients_left

    def _others(self, place: int, layer: int | None) -> tuple[int, int]:
        """Layers other than the one at work whose kept tensors are alive, and whose gradients are."""
        if layer is not None:
            return layer, (self.layers - 1 - layer) * (place == _LAYERS_BACK)
        if place < _LAYERS_BACK:
            return self.layers * (place > _LAYERS), 0
        return 0, self.layers * (place < _OPTIMIZER)

    def _moment(self, place: int, layer: int | None = None, inside: int | None = None) -> Moment:
        keeping, done = self._others(place, layer)
        return Moment(
            self._bytes(place, layer, inside), PLACES[place], layer, keeping, done, inside
        )

    def parts(self, moment: Moment) -> dict[str, int]:
        """Bytes alive at a moment by part."""
        sums = dict.fromkeys(PARTS, 0)
        for _, part, size, _, _ in self.alive(moment):
            sums[part] += size
        return sums

    def alive(self, moment: Moment) -> list[Tensor]:
        """The tensors alive at a moment; those of several layers as one."""
        place = PLACE[moment.place]
        living = [tensor for tensor in self.tensors if tensor.born <= place <= tensor.dies]
        for name, part, size, born, dies in self.layer_tensors:
            kept = born < _COUNT <= dies < END
            count = moment.layers_kept * kept + moment.layers_done * (dies == END)
            if moment.inside is not None:
                count += born <= moment.inside <= dies
            if count:
                living.append(Tensor(name, part, count * size, born, dies))
        return living


def sweep(layer_tensors: Sequence[Tensor], tensors: Sequence[Tensor], layers: int) -> Step:
    kept = gradients_left = 0
    for _, _, size, born, dies in layer_tensors:
        if dies == END:
            gradients_left += size
        elif born < _COUNT <= dies:
            kept += size
    inside = _alive_at_each(layer_tensors, END)
    around = _alive_at_each(tensors, len(PLACES))
    return Step(layer_tensors, tensors, layers, inside, around, kept, gradients_left)


def _alive_at_each(tensors: Sequence[Tensor], places: int) -> list[int]:
    change = [0] * (places + 2)  # a tensor may die at END, one past the last place
    for _, _, size, born, dies in tensors:
        change[born] += size
        change[dies + 1] -= size
    return list(accumulate(change[:places]))
