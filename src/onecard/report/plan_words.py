"""What the sections of a plan share: the words for its parts, a figure with its range."""

from onecard.config import RunConfig
from onecard.messages import Plural, T
from onecard.planner.result import Range
from onecard.report.document import Figure, Quantity, Text, Tone

RANGES = T("Ranges are 80%: one run in ten is expected below, one in ten above.")
PARTS: dict[str, T] = {
    # parameters
    "token_embedding": T("token embedding"),
    "position_embedding": T("position embedding"),
    "attention": T("attention"),
    "mlp": T("MLP"),
    "norms": T("norms"),
    "head": T("output head"),
    # memory
    "weights": T("weights"),
    "gradients": T("gradients"),
    "optimizer": T("optimizer"),
    "cast_weights": T("half-precision weights"),
    "activations": T("activations"),
    "logits_and_loss": T("logits and loss"),
    "context": T("CUDA context"),
    "slack": T("allocator slack"),
    # seconds of a step
    "matmul": T("matrix products"),
    "memory": T("memory traffic"),
    "launch": T("kernel launches"),
    "data": T("data loading"),
    "exchange": T("exchange between cards"),
    "host": T("copies to and from the host"),
}


def part_name(key: str) -> Text:
    """The words for a part of the model, the memory or the step."""
    return PARTS.get(key) or key.replace("_", " ")


def described_shape(config: RunConfig) -> T:
    """The shape as people say it."""
    return T(
        "{layers}, {heads}, {width} wide",
        layers=Plural("{n} layer", "{n} layers", n=config.n_layer),
        heads=Plural("{n} head", "{n} heads", n=config.n_head),
        width=config.n_embd,
    )


def ranged(
    label: Text,
    value: Range,
    spec: str,
    unit: Text = "",
    *,
    note: Text | None = None,
    formula: Text | None = None,
    tone: Tone | None = None,
) -> Figure:
    """A row whose value is the middle and whose span is the 80 % range."""
    low, mid, high = (Quantity(end, spec, unit) for end in (value.low, value.mid, value.high))
    return Figure(label, mid, None if value.low == value.high else (low, high), note, formula, tone)
