"""A few words from the model while it trains, so that a person can read how far it is."""

from onecard.files import write_text
from onecard.model.generate import Sampling, generate
from onecard.model.gpt2 import GPT
from onecard.train.run.session import Session


def write_sample(session: Session, model: GPT, step: int, count: int = 64) -> None:
    """A sample of the model as it is now, into the log and samples/; the training's random numbers are untouched."""
    tokenizer = session.data.tokenizer
    if tokenizer is None:
        return
    start = tokenizer.eot if tokenizer.eot is not None else 0
    sampling = Sampling(top_k=200)
    tokens = generate(model, [[start]], count, sampling, vocab_size=tokenizer.vocab_size)
    text = tokenizer.decode([row[0] for row in tokens])
    session.outputs.write(kind="sample", step=step, text=text)
    folder = session.folder / "samples"
    folder.mkdir(exist_ok=True)
    write_text(folder / f"step_{step:08d}.txt", text)
