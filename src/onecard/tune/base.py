"""What is tuned: a run, a released GPT-2, an export or nanoGPT's checkpoint, with its tokeniser and its own text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onecard.config import RunConfig, load
from onecard.config.model_rules import padded_vocab
from onecard.data import Dataset, Tokenizer, open_dataset
from onecard.data.tokenizers.special import (
    SpecialTokenizer,
    has_chat_tokens,
    plain,
    with_chat_tokens,
)
from onecard.errors import UserError
from onecard.model.opening import open_model
from onecard.planner.params import params


@dataclass(frozen=True)
class Base:
    """The model before tuning."""

    source: str  # for init_from
    config: RunConfig  # its shape; a run's own config in full
    tokenizer: Tokenizer
    is_run: bool

    @property
    def parameters(self) -> int:
        return params(self.config.shape).total

    @property
    def chat_tokenizer(self) -> SpecialTokenizer:
        return with_chat_tokens(self.tokenizer)

    @property
    def rows(self) -> int:
        """Of the vocabulary's table after tuning: as many as there are, where the new tokens fit into the padding."""
        return max(self.config.shape.vocab_size, padded_vocab(self.chat_tokenizer.vocab_size))

    @property
    def new_ids_from(self) -> int:
        """The first id whose row is new: what comes after the tokens that the model knows."""
        known = self.tokenizer if has_chat_tokens(self.tokenizer) else plain(self.tokenizer)
        return min(known.vocab_size, self.config.shape.vocab_size)


def open_base(
    source: str, dataset: str | None = None, report: Callable[[str], None] = lambda text: None
) -> Base:
    """Find the model, and open it once to see that it is whole."""
    name = source.removeprefix("openai-community/")
    if not Path(source).exists():
        source = name
    sampler = open_model(source, "cpu", dataset, report)
    folder = Path(source)
    is_run = (folder / "config.toml").is_file()
    config = sampler.model.config
    if is_run:
        config = load(folder / "config.toml").replace(vocab_size=config.shape.vocab_size)
    return Base(source, config, sampler.tokenizer, is_run)


def base_text(base: Base, named: str | None, report: Callable[[str], None]) -> Dataset | None:
    """The text the model was trained on: what --base-data names, or a run's own; None where it is not available."""
    if named is None and (not base.is_run or base.config.learn_from == "answers"):
        return None  # a tuned run's own data are conversations
    try:
        dataset = open_dataset(named or base.config.dataset)
    except UserError as error:
        if named is not None:
            raise
        report(f"the base's own text was not found ({error.message})")
        return None
    known, theirs = plain(base.tokenizer), dataset.tokenizer
    if theirs is None or plain(theirs).describe() != known.describe():
        if named is not None:
            raise UserError(
                f"{named} was prepared with another tokeniser than the model's ({known.name})",
                hint=f"prepare it with the option `tokenizer={known.name}`",
            )
        return None
    if {"train", "val"} <= dataset.splits.keys():
        return dataset
    return None
