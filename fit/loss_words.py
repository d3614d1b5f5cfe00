"""The words of a table of losses: data sets, tokenizers, recipes, rates and schedules, as people write them.

>>> recipe_of_row({"recipe": "nanoGPT", "recipe_detail": "RoPE, AdamW"})
'gpt2-adamw'
>>> round(done_of({"schedule_point": "mid(92%)"}, 1e9), 2)
0.92
>>> round(bytes_ratio("own bpe 16384", 16384), 2), bytes_ratio("llama", 32000)
(0.9, None)
"""

import math
import re
from typing import Any

from fit.words import number_in, whole_in, word_in
from onecard.planner.expected_loss import GPT2_VOCABULARY, bare_name, known_dataset

LONG_CONTEXT = 4096  # beyond it the evaluation reads further back than 1024 tokens, and the loss is lower for it
_OTHER_TEXT = re.compile(
    r"%|\+|\bmix|dclm|pile|pajama|\bc4\b|wiki|book|stack|pdf|cosmopedia|climb|github|math|stories"
)
# an evaluation that names no other text, and the words that may stand beside GPT-2's name
_OWN = re.compile(
    r"((own|the|same|in|domain|train|training|loss|smooth|smoothed|eval|evaluation|set|split|last|shard)\b\W*)*"
)
_BESIDE_GPT2 = re.compile(
    r"((gpt2|r50k|base|tiktoken|bpe|byte|level|tokenizer|tokens|fast|openai|community|hf|huggingface|transformers|vocab|50257|50304)"
    r"(\b|_)[\W_]*)+"
)


_BESIDE_GPT2 = re.compile(
    r"((gpt2|r50k|base|tiktoken|bpe|byte|level|tokenizer|tokens|fast|openai|community|hf|huggingface|transformers|vocab|50257|50304)"
    r"(\b|_)[\W_]*)+"
)


# Bytes a token of web text: GPT-2's 4.6, and what two tokenizers trained on FineWeb have (rows pg-base and pg-sp8192: loss over
# val_bpb); between and beyond those two by the logarithm of the vocabulary.
GPT2_BYTES = 4.6
_TRAINED = ((1024, 2.436), (8192, 3.727))
_OWN_VOCABULARIES = (1024, 65536)
_OWN_TOKENIZER = re.compile(r"\b(own|custom|bpe|sp|sentencepiece|nanochat|trained)(\b|_|\d)")


def level_of(row: dict[str, str]) -> tuple[str, str, float]:
    """The law's data set, nothing, and how many of GPT-2's tokens one of the row's stands for; or, where the law has no level for
    that text, evaluation and tokenizer, a name for the combination and why."""
    name, evaluated = row.get("dataset", ""), row.get("eval_set", "")
    mixed = "dedup" in name.lower() or _OTHER_TEXT.search(name.lower())
    dataset = None if mixed else known_dataset(name)
    tokenizer = tokenizer_of(row)
    on = re.sub(r"[-_ ]*(val|test|dev|held|\().*", "", evaluated.lower())
    elsewhere = not _OWN.fullmatch(on.strip())
    if elsewhere:
        elsewhere = known_dataset(on) != dataset if dataset else bare_name(on) != bare_name(name)
    ratio = 1.0 if tokenizer == "gpt2" else bytes_ratio(tokenizer, _vocabulary(row, tokenizer))
    if dataset and ratio and not elsewhere:
        return dataset, "", ratio
    reason = (
        f"no level is known for the data set {name!r} with {'GPT-2' if tokenizer == 'gpt2' else tokenizer}'s tokens"
        if not dataset
        else f"trained on {name}, measured on {evaluated}"
        if elsewhere
        else f"its tokens are {tokenizer}'s, not GPT-2's"
    )
    combination = f"{bare_name(name)}{f' on {bare_name(on)}' if elsewhere else ''}, {tokenizer}"
    return combination, reason, 1.0


def _vocabulary(row: dict[str, str], tokenizer: str) -> int:
    """As given, or as the tokenizer's name has it: "own BPE 32000", "bpe32k"; 0 where neither says."""
    named = re.search(r"(\d+)(k?)\b", tokenizer)
    guess = int(named[1]) * (1000 if named[2] else 1) if named else 0
    return whole_in(row, "vocab_size", most=1e7) or guess


def tokenizer_of(row: dict[str, str]) -> str:
    """ "tiktoken gpt2", "r50k_base", "GPT-2 (50257)" and nothing at all are "gpt2"; any other by its own name."""
    text = word_in(row, "tokenizer")
    vocab = whole_in(row, "vocab_size", most=1e7)
    if not text:
        return "gpt2" if vocab is None or vocab in GPT2_VOCABULARY else f"a vocabulary of {vocab}"
    same = re.sub(r"gpt[-_ ]2", "gpt2", text)
    gpt2 = ("gpt2" in same or "r50k" in same) and _BESIDE_GPT2.fullmatch(same)
    return "gpt2" if gpt2 else text.rsplit("/", 1)[-1]


def recipe_of_row(row: dict[str, str]) -> str:
    """The fitted recipe that a row's own word means; where that names no optimizer, its details may."""
    text = re.sub(r"gpt[-_ ]2", "gpt2", row.get("recipe", "").lower())
    detail = row.get("recipe_detail", "").lower()
    optimizer = text if re.search("adam|muon|soap|shampoo|other", text) else f"{text} {detail}"
    context = number_in(row, "seq_len") or 1024
    if "speedrun" in text or "modded" in text:
        return "speedrun-long" if context > LONG_CONTEXT else "speedrun"
    if "muon" in optimizer and not re.search(r"\b(no|without|not) muon", optimizer):
        return "gpt2-muon" if "gpt2" in text else "modern-muon"
    for name in ("soap", "shampoo"):
        if name in optimizer:
            return name
    if re.search(r"modern|llama", text):
        return "modern-adamw"
    if re.search(r"gpt2|nanogpt|llm\.c", text):
        return "gpt2-adamw"
    return (
        "modern-adamw"
        if re.search(r"rope|rmsnorm|swiglu|llama", detail)
        else "gpt2-adamw"
        if text in ("", "adam", "adamw")
        else "other"
    )


def schedule_of(words: str, steps: int, rate: float) -> dict[str, Any]:
    """A schedule as people write it: "cosine->0.1x warm715", "wsd(29% down)", "linear->6e-5", "constant"."""
    share = re.search(r"(\d+)(?:-(\d+))?% ?(?:down|decay|cool|warm-?down)", words)
    warm = re.search(r"warm(?:-?up)?[ =:]*(\d+)(?![\d.]*%)", words)
    floor = re.search(r"->\s*(\d*\.?\d+)x", words)
    least = re.search(r"->\s*(\d*\.?\d+e-?\d+)", words)
    down = (float(share[1]) + float(share[2] or share[1])) / 200 if share else 0.3
    flat_first = re.search(r"wsd|trapez|warm-?down|cool-?down|stable", words)
    lowest = rate * float(floor[1]) if floor else float(least[1]) if least else 0.0
    return {
        "lr_decay_iters": steps,
        "warmup_iters": min(int(warm[1]) if warm else 0, steps),
        "decay_lr": not _constant(words),
        "min_lr": min(rate, lowest),
        "schedule": "wsd" if flat_first else "linear" if "linear" in words else "cosine",
        "decay_fraction": min(1.0, max(0.01, down)),
    }


def rate_of(row: dict[str, str]) -> float | None:
    """The peak learning rate, where a row gives one: "6e-4", "1.5e-3 (run.sh)", "0.0006?"; or its details, "Adam lr .0015"."""
    found = re.match(r"[~≈]?\s*(\d*\.?\d+(?:e-?\d+)?)", word_in(row, "lr"))
    detail = row.get("recipe_detail", "").lower()
    if not found and not re.search(r"hyperball|adamh", detail):  # whose rate is another thing
        found = re.search(r"\blr[ =:]*(\d*\.?\d+(?:e-?\d+)?)", detail)
    rate = float(found[1]) if found else 0.0
    return rate if 1e-6 < rate < 0.1 else None


def done_of(row: dict[str, str], tokens: float) -> float:
    """How much of its schedule a run had done: "mid(92%)" is 0.92; "mid" alone by the steps that the schedule names ("cosine
    600k it"), or two thirds; a rate that never decays has no middle."""
    point, words = row.get("schedule_point", "").lower(), row.get("schedule", "").lower()
    if not point.startswith("mid") or "no decay" in point:
        return 1.0
    share = re.search(r"(\d+(?:\.\d+)?) ?%", point)
    planned = re.search(r"(\d+(?:\.\d+)?)(k?) ?(?:it|step)", words)
    batch = number_in(row, "batch_tokens")
    if share:
        done = float(share[1]) / 100
    elif planned and batch:
        done = tokens / (float(planned[1]) * (1e3 if planned[2] else 1) * batch)
    else:
        done = 0.66
    return min(1.0, max(0.01, done))


def _constant(schedule: str) -> bool:
    """Whether the learning rate never comes down: "constant", "warmup 700 then constant", "no decay"."""
    if re.search(r"no (lr )?decay|undecayed|without decay", schedule):
        return True
    after = re.sub(r"(linear )?warm-?(up)?", "", schedule)
    return bool(re.search(r"\bconst|\bflat\b", after)) and not re.search(
        r"decay|down|cosine|linear|wsd|trapez|->", after
    )


def bytes_ratio(tokenizer: str, vocabulary: int) -> float | None:
    """How many of GPT-2's tokens one token of a tokenizer trained on such text stands for; None for anybody's other tokenizer."""
    least, most = _OWN_VOCABULARIES
    if not _OWN_TOKENIZER.search(tokenizer) or not least <= vocabulary <= most:
        return None
    (small, few), (large, many) = _TRAINED
    slope = (many - few) / math.log(large / small)
    return (few + slope * math.log(vocabulary / small)) / GPT2_BYTES
