"""A row's shape and batch: layers, heads, widths, vocabulary, context, micro-batch, accumulation; what is left out follows from
the rest where it can.

>>> row = {"n_params_m": "17.06", "vocab_size": "1024"}
>>> hidden_width(row, "9L GQA", 9, 512, 1024, 512 + 2 * 256, True, [])
1024
>>> hidden_width({}, "swiglu(704)", 9, 512, 1024, 512, True, [])
704
"""

import re

from fit.words import amount_in, number_in, whole_in, word_in
from onecard.errors import UserError


def window_of(row: dict[str, str], text: str) -> float:
    """Attention's share of what full causal attention would do; a pattern like SSSL has quarter windows at its S."""
    given = number_in(row, "attn_window_factor")
    if given is not None and given > 0:
        return min(1.0, given)
    block = number_in(row, "block_size") or 0
    if block > _DOCUMENT and re.search(
        r"doc.{0,10}mask|flex", f"{text} {word_in(row, 'flash_sdpa')}"
    ):
        return _DOCUMENT / block  # attention stays inside a document
    pattern = re.search(r"\bs+l\b", f"{text} {row.get('flash_sdpa', '').lower()}")
    return (0.25 * (len(pattern[0]) - 1) + 1) / len(pattern[0]) if pattern else 1.0


_DOCUMENT = 1024  # tokens of a web page, about
# GPT-2 as released, where a row names it and leaves its shape out: layers, heads, width
_RELEASED = {
    r"gpt-?2(-small|.{0,3}124m)|^gpt-?2$": (12, 12, 768),
    r"gpt-?2.{0,3}(medium|35[05]m)": (24, 16, 1024),
    r"gpt-?2.{0,3}(large|77[04]m)": (36, 20, 1280),
    r"gpt-?2.{0,3}(xl|1\.5)": (48, 25, 1600),
}


def shape_of(row: dict[str, str], assumed: list[str]) -> tuple[int, int, int]:
    """Layers, heads, width."""
    layers, heads, width = (
        whole_in(row, "n_layer"),
        whole_in(row, "n_head"),
        whole_in(row, "n_embd"),
    )
    if layers is None or width is None:
        model = row.get("model", "").lower()
        for name, shape in _RELEASED.items():
            if re.search(name, model):
                assumed.append("the shape that GPT-2 was released with")
                return shape
        raise UserError(f"no {'n_layer' if layers is None else 'n_embd'} given")
    if heads is None:
        heads = max(1, round(width / 64))
        assumed.append("heads 64 wide")
    if heads > width:
        raise UserError(f"n_head = {heads} is not possible")
    return layers, heads, width


def batch_of(row: dict[str, str], gpus: int, assumed: list[str]) -> tuple[int, int, int, float]:
    """Vocabulary, context, micro-batch, accumulation; what is left out follows from the others, or is the usual one."""
    vocab, block = whole_in(row, "vocab_size", most=1e7), whole_in(row, "block_size", most=1e7)
    batch, accumulation = whole_in(row, "micro_batch", most=1e6), number_in(row, "grad_accum")
    tokens = number_in(row, "tokens_per_iter")
    tokens = tokens if tokens and tokens > 0 else None
    accumulation = accumulation if accumulation and accumulation > 0 else None
    if vocab is None:
        vocab = 50304 if "nanogpt" in row.get("framework", "").lower() else 50257
        assumed.append(f"GPT-2's vocabulary, {vocab}")
    if block is None and tokens and batch and accumulation:
        block = max(1, round(tokens / (batch * accumulation * gpus)))
        assumed.append(f"a context of {block}, from the tokens of a step")
    if block is None and re.search(
        r"gpt", f"{row.get('model', '')} {row.get('framework', '')}".lower()
    ):
        block = 1024
        assumed.append("GPT-2's context, 1024")
    if block is None:
        raise UserError("no block_size given")
    if batch is None and tokens and accumulation:
        batch = max(1, round(tokens / (block * accumulation * gpus)))
        assumed.append(f"a micro-batch of {batch}, from the tokens of a step")
    if batch is None:
        raise UserError("no micro_batch given")
    if accumulation is None:
        accumulation = tokens / (batch * block * gpus) if tokens else None
    if accumulation is None:
        accumulation = _accumulation(row, batch * block * gpus, assumed)
    if accumulation > 1e6:
        raise UserError(f"grad_accum = {accumulation:g} is not possible")
    return vocab, block, batch, accumulation


def _accumulation(row: dict[str, str], at_once: int, assumed: list[str]) -> float:
    """From both readings of time, where there are two; else half a million tokens a step, as GPT-2's reproductions do.
    A script of another kind whose steps alone are timed is taken not to accumulate."""
    milliseconds, rate = number_in(row, "ms_per_iter"), number_in(row, "tokens_per_s")
    if milliseconds and rate and milliseconds > 0 and rate > 0:
        assumed.append("accumulation from the time and the rate")
        return max(1.0, round(milliseconds / 1e3 * rate / at_once))
    if (
        rate is None
        and milliseconds
        and not re.search(r"nano.?gpt|nanochat|modded|llm\.c", word_in(row, "framework"))
    ):
        assumed.append("no accumulation")
        return 1.0
    assumed.append("accumulation to half a million tokens a step")
    return max(1.0, round(2**19 / at_once))


# A hidden width in words: "SwiGLU(704)", "d_ff 2048", "mlp hidden 1024"
_HIDDEN = re.compile(
    r"(?:swiglu|geglu|relu2|d_?ff|ffn|intermediate|hidden)(?: (?:size|dim|width))?[ (=:]*(\d{2,5})\b"
)
_ROUNDED = 0.04  # of a parameter count in words, "17M" say


def hidden_width(
    row: dict[str, str],
    text: str,
    layers: int,
    width: int,
    vocab: int,
    qkv: int,
    tied: bool,
    assumed: list[str],
) -> int | None:
    """The MLP's inner width: given, named in words, or what the parameter count leaves for it where four times the width
    does not agree with it. None: four times the width."""
    given = number_in(row, "d_ff")
    if given is not None:
        if not 1 <= given <= 1e7:
            raise UserError(f"d_ff = {given:g} is not possible")
        return int(given)
    named = _HIDDEN.search(text)
    if named:
        assumed.append(f"an MLP {named[1]} wide, from the row's words")
        return int(named[1])
    params = _parameters(row)
    if params is None or whole_in(row, "vocab_size", most=1e7) is None:
        return None
    matrices = 3 if re.search(r"swiglu|geglu|gated", text) else 2
    outside = vocab * width * (1 if tied else 2) + layers * width * (qkv + width)
    left = (params - outside) / (matrices * layers * width)
    usual = 4 * width if matrices == 2 else 8 * width / 3
    # what is beyond the usual may be other tables; below half the width the count is of something else
    if (usual - left) * matrices * layers * width < _ROUNDED * params or left < width / 2:
        return None
    assumed.append(f"an MLP {64 * round(left / 64)} wide, from the parameters")
    return 64 * max(1, round(left / 64))


def _parameters(row: dict[str, str]) -> float | None:
    """As given, or as the model's name begins: "17M 9L"."""
    given = amount_in(row, "n_params_m", 1e6)
    named = re.match(r"(\d+(?:\.\d+)?) ?m\b(?!-class)", row.get("model", "").lower())
    return given or (float(named[1]) * 1e6 if named else None)
