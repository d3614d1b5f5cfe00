"""A sheet of prompts: greedy and sampled answers side by side, with figures for what the eye tires of.

    sheet = answer_prompts(open_model("out"), "out", read_prompts("en"))
    sheet.answers[0].text, sheet.greedy.looping

A prompt a line; a blank line or a line that begins with # is left out. A folder is all its .txt files.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.model.generate import Generation, Sampler, Sampling, write_together

SHIPPED = ("en", "es", "hi")
SCHEMA = "onecard.prompts/1"
TEMPERATURE, TOP_K, SEED = 0.8, 200, 1337
_MOST_PROMPTS = 1000
_MOST_BYTES = 1 << 20
_NGRAM = 4  # words
_LOOP_REPEATS = 3  # the same words so often at the end are a loop
_LONGEST_LOOP = 24  # words, or characters
_LOOP_CHARACTERS = 24  # a loop within a word ("self.self.self.") is at least as long, "..." is none


@dataclass(frozen=True)
class Answer:
    prompt: str
    text: str
    greedy: bool
    ended: bool  # by the end-of-text token
    tokens: int


@dataclass(frozen=True)
class SheetFigures:
    """Means over the answers of one kind."""

    repeated: float  # share of four-word sequences that were there before in the answer
    distinct: float  # different words per word
    looping: float  # share of answers that end in a loop
    ended: float  # share that reached the end of a text
    tokens: float  # length, until the end of the text or the limit


@dataclass(frozen=True)
class Sheet:
    model: str
    step: int
    answers: tuple[Answer, ...]
    greedy: SheetFigures
    sampled: SheetFigures

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def read_prompts(source: str) -> list[str]:
    """A shipped set by its language, a file, or a folder of .txt files."""
    if source in SHIPPED and not Path(source).exists():
        text = (files("onecard.evals") / "prompt_files" / f"{source}.txt").read_text("utf-8")
        return _prompts(text)
    path = Path(source)
    try:
        paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        prompts = [prompt for p in paths for prompt in _prompts(_text(p))]
    except OSError as error:
        raise UserError(
            f"{source} cannot be read: {error.strerror}",
            hint=f"a file with a prompt a line, a folder of them, or {', '.join(SHIPPED)}",
        ) from None
    if not prompts:
        raise UserError(f"{source} holds no prompts", hint="a prompt a line in a .txt file")
    return prompts[:_MOST_PROMPTS]


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", errors="replace")


def _prompts(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def answer_prompts(
    sampler: Sampler,
    name: str,
    prompts: Sequence[str],
    tokens: int = 60,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Sheet:
    """Each prompt continued greedily and sampled."""
    answers: list[Answer] = []
    for number, prompt in enumerate(prompts):
        for greedy in (True, False):
            answers.append(_answer(sampler, prompt, tokens, greedy, SEED + number))
        progress(number + 1, len(prompts))
    return Sheet(
        name,
        sampler.step,
        tuple(answers),
        figures_of([answer for answer in answers if answer.greedy]),
        figures_of([answer for answer in answers if not answer.greedy]),
    )


def _answer(sampler: Sampler, prompt: str, count: int, greedy: bool, seed: int) -> Answer:
    sampling = Sampling(temperature=0.0) if greedy else Sampling(TEMPERATURE, TOP_K, seed=seed)
    eot = sampler.tokenizer.eot
    stops = () if eot is None else (eot,)
    written = Generation(sampler.encode(prompt), sampling, count, stops)
    for _ in write_together(sampler.model, [written], sampler.vocab_size):
        pass
    text = sampler.tokenizer.decode(written.ids)
    return Answer(prompt, text, greedy, written.ended == "stop", len(written.ids))


def figures_of(answers: Sequence[Answer]) -> SheetFigures:
    words = [answer.text.split() for answer in answers]
    return SheetFigures(
        repeated=_mean([repeated_share(w) for w in words]),
        distinct=_mean([len(set(w)) / len(w) for w in words if w]),
        looping=_mean([float(loops(a.text)) for a in answers]),
        ended=_mean([float(answer.ended) for answer in answers]),
        tokens=_mean([float(answer.tokens) for answer in answers]),
    )


def repeated_share(words: Sequence[str]) -> float:
    """The share of four-word sequences that stood in the text before.

    >>> round(repeated_share("a b c d a b c d".split()), 3)
    0.2
    """
    grams = [tuple(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loops(text: str) -> bool:
    """Whether the text ends in the same few words, or the same few characters, over and over.

    >>> loops("it was the end of the end of the end of the")
    True
    >>> loops("return self.self.self.self.self.self.se")
    True
    >>> loops("the cat sat on the mat and the dog on the log...")
    False
    """
    return _repeats(text.split(), 0) or _repeats(text.rstrip(), _LOOP_CHARACTERS)


def _repeats(parts: Sequence[str], least: int) -> bool:
    for length in range(1, _LONGEST_LOOP + 1):
        count = length * max(_LOOP_REPEATS, -(-least // length))
        tail = parts[-count:]
        if len(tail) == count and all(tail[i] == tail[i % length] for i in range(count)):
            return True
    return False


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
