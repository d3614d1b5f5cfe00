"""Text from a model: one new token at a time, the keys and values of the old ones kept.

>>> model, data = load_run("out")                                              # doctest: +SKIP
>>> for token in generate(model, [[15496]], count=20, vocab_size=50257): ...   # doctest: +SKIP

Learned positions have no number beyond block_size: once the window is full it slides by one token at a time, and every
key and value in it changes its position. So from there on the window is computed again for each token, which is what
nanoGPT does from the beginning and gives the same tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.data import Tokenizer, gpt2, kept_tokenizer, open_dataset
from onecard.errors import RunFailure, UserError
from onecard.model import checkpoint
from onecard.model.build import make_model
from onecard.model.gpt2 import GPT
from onecard.model.machine import choose_device


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 1337,
    vocab_size: int | None = None,
) -> Iterator[list[int]]:
    """`count` times the next token of every prompt (all of one length). Ids from vocab_size up are never drawn."""
    device = model.lm_head.weight.device
    # on the CPU, so that a seed means the same tokens on every machine whose logits agree
    generator = torch.Generator().manual_seed(seed)
    limit = vocab_size or model.config.shape.vocab_size
    room = model.config.block_size
    tokens = torch.tensor(prompts, dtype=torch.long, device=device)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            cache = model.new_cache(len(prompts))
            fresh = tokens[:, -room:]
            for _ in range(count):
                if (
                    cache.length + fresh.shape[1] > room
                ):  # the window slides: every position changes
                    cache.length = 0
                    fresh = tokens[:, -room:]
                logits = model.decode(fresh, cache)[:, :limit]
                fresh = draw(logits.float().cpu(), temperature, top_k, top_p, generator).to(device)
                tokens = torch.cat((tokens, fresh), dim=1)[:, -room:]
                yield fresh[:, 0].tolist()
    finally:
        model.train(was_training)


def draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator,
) -> Tensor:
    """One token a row, (rows, 1): the likeliest at temperature 0, else drawn from what top_k and top_p leave."""
    if not torch.isfinite(logits).all():
        raise RunFailure(
            "the model's output is not finite: its training diverged, or its weights are damaged",
            hint="an earlier checkpoint of the run may be good: name its folder",
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits / temperature
    order: Tensor | None = None
    if top_k is not None and top_k < logits.shape[-1]:
        logits, order = logits.topk(top_k, dim=-1)
    if top_p is not None and top_p < 1:
        if order is None:
            logits, order = logits.sort(dim=-1, descending=True)
        chances = logits.softmax(dim=-1)
        # the smallest set of likeliest tokens that reaches top_p: keep one whose predecessors have not reached it
        logits = logits.masked_fill(chances.cumsum(dim=-1) - chances >= top_p, -math.inf)
    drawn = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
    return drawn if order is None else order.gather(-1, drawn)


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
    model.to(choose_device(device)).eval()
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
    """The data set's that was named; else the run's own copy; else, for older runs, the data folder's."""
    kept = run_folder_of(source) / "data"
    if dataset is None and kept.is_dir():
        try:
            if (own := kept_tokenizer(kept)) is not None:
                return own
        except UserError:
            pass  # a damaged copy: the data folder may still be there
    dataset = dataset or config.dataset
    try:
        found = open_dataset(dataset).tokenizer
        if found is not None:
            return found
    except UserError:
        pass  # the data may be on another disk by now; GPT-2's words need no file
    if config.shape.vocab_size >= GPT2_VOCAB:
        return gpt2()
    raise UserError(
        f"the tokeniser of the data set {dataset!r} is not at hand",
        hint="--dataset names the folder that holds its tokeniser",
    )
