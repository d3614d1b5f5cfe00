"""Tokens from a model, one at a time for one text or several side by side; the keys and values of the old ones kept.

>>> model, data = load_run("out")                                              # doctest: +SKIP
>>> for token in generate(model, [[15496]], count=20, vocab_size=50257): ...   # doctest: +SKIP

Learned positions have no number beyond block_size: once the window is full it slides by one token at a time, and every
key and value in it changes its position. So from there on the window is computed again for each token, which is what
nanoGPT does from the beginning and gives the same tokens.

Prompts of different lengths go side by side from their first token on: while a longer prompt is still being read, a
shorter one is already being continued. So no row holds padding, and each text is what it would be alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.data import Tokenizer, gpt2, kept_tokenizer, open_dataset
from onecard.data.read.kept import RECORD
from onecard.errors import UserError
from onecard.model import checkpoint
from onecard.model.build import make_model
from onecard.model.gpt2 import GPT, Cache
from onecard.model.machine import choose_device
from onecard.model.sampling import Drawer, Sampling

Ended = Literal["stop", "length", "cancelled"]


class Generation:
    """One text being written: its prompt, how its tokens are drawn, when it ends. `ids` are those drawn so far."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        most_tokens: int = 200,
        stop_tokens: Iterable[int] = (),
    ):
        assert prompt, "a model needs a token to continue from"
        self.prompt = list(prompt)
        self.most_tokens = most_tokens
        self.stop_tokens = frozenset(stop_tokens)
        self.ids: list[int] = []  # without the stop token
        self.ended: Ended | None = None if most_tokens > 0 else "length"
        self._drawer = Drawer(sampling or Sampling(), self.prompt)

    def cancel(self) -> None:
        """End it before its next token; from any thread."""
        self.ended = self.ended or "cancelled"

    def draw(self, logits: Tensor) -> int | None:
        """The next token by its logits, (vocabulary,); None where it ends the text."""
        token = self._drawer.draw(logits)
        if token in self.stop_tokens:
            self.ended = self.ended or "stop"
            return None
        self.ids.append(token)
        if len(self.ids) >= self.most_tokens:
            self.ended = self.ended or "length"
        return token


def write_together(
    model: GPT, generations: Sequence[Generation], vocab_size: int | None = None
) -> Iterator[list[int | None]]:
    """The next token of every text, until all have ended; None where a text has none in this step.

    Ids from vocab_size up are never drawn.
    """
    limit = vocab_size or model.config.shape.vocab_size
    room = model.config.block_size
    prompts = [generation.prompt[-room:] for generation in generations]
    common = min(map(len, prompts))
    rows = [prompt[:common] for prompt in prompts]  # what the model has read or is about to read
    was_training = model.training
    model.eval()
    try:
        cache = model.new_cache(len(rows))
        fresh = rows
        while not all(generation.ended for generation in generations):
            if cache.length + len(fresh[0]) > room:  # the window slides: every position changes
                cache.length = 0
                fresh = rows = [row[-room:] for row in rows]
            logits = _logits(model, fresh, cache)[:, :limit]
            drawn: list[int | None] = [None] * len(rows)
            for n, generation in enumerate(generations):
                if len(rows[n]) < len(prompts[n]):
                    rows[n].append(prompts[n][len(rows[n])])
                    continue
                if not generation.ended:
                    drawn[n] = generation.draw(logits[n])
                token = drawn[n]
                rows[n].append(rows[n][-1] if token is None else token)
            fresh = [row[-1:] for row in rows]
            yield drawn
    finally:
        model.train(was_training)


@torch.inference_mode()
def _logits(model: GPT, fresh: list[list[int]], cache: Cache) -> Tensor:
    tokens = torch.tensor(fresh, dtype=torch.long, device=model.lm_head.weight.device)
    return model.decode(tokens, cache).float().cpu()


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling | None = None,
    *,
    vocab_size: int | None = None,
) -> Iterator[list[int]]:
    """`count` times the next token of every prompt (all of one length); row n is drawn with the seed plus n."""
    assert len(set(map(len, prompts))) == 1
    first = sampling or Sampling()
    generations = [
        Generation(prompt, replace(first, seed=first.seed + n), count)
        for n, prompt in enumerate(prompts)
    ]
    for drawn in write_together(model, generations, vocab_size):
        yield [token for token in drawn if token is not None]


@dataclass(frozen=True)
class Sampler:
    """A model with the words it speaks."""

    model: GPT
    tokenizer: Tokenizer
    step: int

    @property
    def vocab_size(self) -> int:
        return min(self.tokenizer.vocab_size, self.model.config.shape.vocab_size)

    def encode(self, prompt: str) -> list[int]:
        ids = self.tokenizer.encode(prompt) if prompt else []
        return ids or [self.tokenizer.eot if self.tokenizer.eot is not None else 0]


def load_run(
    source: Path,
    device: str = "auto",
    dataset: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Sampler:
    """The newest good checkpoint of a run, or one checkpoint by its folder, with the run's tokeniser."""
    saved = _saved(source, report)
    config = RunConfig.from_values(saved.state["config"]).replace(dropout=0.0)
    with torch.device("meta"):  # no time spent on initial weights that are replaced
        model = make_model(config)
    if problem := checkpoint.misfit(model, saved.model):
        raise UserError(
            f"the weights in {source} are not those of its config: {problem}",
            hint="name another checkpoint",
        )
    model.load_state_dict(saved.model, strict=False, assign=True)
    if config.tied:
        model.lm_head.weight = model.transformer.wte.weight
    model.float().to(choose_device(device)).eval()  # weights may be kept in bf16
    tokenizer = _tokenizer(source, dataset, config)
    return Sampler(model, tokenizer, saved.state["step"])


def _saved(source: Path, report: Callable[[str], None]) -> checkpoint.Saved:
    if (source / checkpoint.STATE).is_file():
        try:
            return checkpoint.read_model(source)
        except checkpoint.CorruptError as error:
            raise UserError(
                f"the checkpoint {source} is damaged: {error}",
                hint="name its run's folder, and the newest good checkpoint is used",
            ) from None
    saved = checkpoint.newest_good(source, report, checkpoint.read_model)
    if saved is None:
        raise UserError(
            f"{source} holds no checkpoint",
            hint="name a run's folder (its out_dir) or one checkpoint in it",
        )
    return saved


def run_folder_of(source: Path) -> Path:
    """The run that a folder is, or that a checkpoint in it belongs to."""
    return source.parent.parent if (source / checkpoint.STATE).is_file() else source


def _tokenizer(source: Path, dataset: str | None, config: RunConfig) -> Tokenizer:
    """The data set's that was named; else what the run keeps in its own folder; else, for older runs, the data folder's."""
    run = run_folder_of(source)
    own = run / Path(config.dataset).name  # a tuned run's data, wherever that is now
    places: list[str | Path] = [dataset] if dataset else [own, run / "data", config.dataset]
    for place in places:
        try:
            if place == run / "data" and (run / "data" / RECORD).is_file():
                found = kept_tokenizer(run / "data")
            else:
                found = open_dataset(place).tokenizer
        except UserError:
            continue  # the data may be on another disk by now; GPT-2's words need no file
        if found is not None:
            return found
    if config.shape.vocab_size >= GPT2_VOCAB and config.learn_from == "all":
        return gpt2()
    raise UserError(
        f"the tokeniser of the data set {dataset or config.dataset!r} was not found",
        hint="--dataset names the folder that holds its tokeniser",
    )
