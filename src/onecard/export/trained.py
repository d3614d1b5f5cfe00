"""What is exported: the model of one checkpoint, its tokeniser, and the run's own record of how it was trained."""

from dataclasses import dataclass
from pathlib import Path

from onecard.config import RunConfig
from onecard.data import Tokenizer
from onecard.errors import UserError
from onecard.model.checkpoint import STATE
from onecard.model.gpt2 import GPT
from onecard.model.opening import load_run, run_folder_of


@dataclass(frozen=True)
class Trained:
    model: GPT  # on the CPU, in float32
    tokenizer: Tokenizer
    config: RunConfig
    step: int
    run_folder: Path
    checkpoint: Path | None  # the one that was named; None for the newest good one

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding that stand for a token."""
        return self.tokenizer.vocab_size


def load_trained(source: Path, dataset: str | None = None) -> Trained:
    """The newest good checkpoint of a run folder, or the one that `source` names."""
    sampler = load_run(source, device="cpu", dataset=dataset)
    rows = sampler.model.config.shape.vocab_size
    if sampler.tokenizer.vocab_size > rows:
        raise UserError(
            f"the tokeniser has {sampler.tokenizer.vocab_size:,} tokens and the model only {rows:,}",
            hint="name the data set that the run was trained on with the option `dataset`",
        )
    is_checkpoint = (source / STATE).is_file()
    return Trained(
        model=sampler.model.float(),
        tokenizer=sampler.tokenizer,
        config=sampler.model.config,
        step=sampler.step,
        run_folder=run_folder_of(source),
        checkpoint=source if is_checkpoint else None,
    )
