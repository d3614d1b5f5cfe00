"""A few words from the model while it trains, so that a person can read how far it is."""

from onecard.files import write_text
from onecard.model.generate import generate
from onecard.model.sampling import Sampling
from onecard.train.run.session import Session


def write_sample(session: Session, count: int = 64) -> None:
    """A sample of the model as it is now, into the log and samples/; the training's random numbers are untouched."""
    tokenizer = session.data.tokenizer
    if tokenizer is None:
        return
    start = tokenizer.eot if tokenizer.eot is not None else 0
    ids = [
        step[0]
        for step in generate(
            session.model, [[start]], count, Sampling(top_k=200), vocab_size=tokenizer.vocab_size
        )
    ]
    text = tokenizer.decode(ids)
    session.write(kind="sample", step=session.progress.step, text=text)
    folder = session.folder / "samples"
    folder.mkdir(exist_ok=True)
    write_text(folder / f"step_{session.progress.step:08d}.txt", text)
