"""What `onecard go` was asked and expects, kept in its folder, so that an interrupted one continues."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from onecard.errors import UserError
from onecard.files import write_json
from onecard.untrusted import read_json

SCHEMA = "onecard.go/1"
FILE = "go.json"


@dataclass(frozen=True)
class Question:
    """The options that decide what is run; another question needs another folder."""

    limit: tuple[str, str]  # recommend's option and its value: ("hours", "20")
    data: str | None
    recipe: str | None
    price: str | None
    budget: str | None  # of electricity
    device: str
    overrides: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The same for `onecard recommend`."""
        name, value = self.limit
        words = ["--gpu", self.device, f"--{name.replace('_', '-')}", value]
        words += ["--recipe", self.recipe] if self.recipe else []
        words += ["--price", self.price] if self.price else []
        return [*words, *(word for change in self.overrides for word in ("--set", change))]


@dataclass(frozen=True)
class Expectation:
    """What the stages need to know, and what was announced to the user."""

    words: list[str]  # for `onecard recommend`, after the budget
    card: str
    source: str | None  # for `onecard data`; None where the data is prepared already
    data: str  # the prepared folder
    tokenizer: str | None
    fetch_tokens: int | None  # None: all there is
    params: int
    tokens: int
    memory_bytes: float
    train_seconds: float
    data_seconds: float
    download_bytes: int
    data_bytes: int
    kwh: float
    cost: tuple[float, str]
    loss: tuple[float, float, float] | None
    device: str


class Progress:
    """`go.json`: the question, what is expected, and which stages are done."""

    def __init__(self, root: Path, question: Question, expected: Expectation, done: list[str]):
        self.root, self.question, self.expected, self._done = root, question, expected, done

    def done(self, stage: str) -> bool:
        return stage in self._done

    def mark(self, stage: str) -> None:
        self._done.append(stage)
        self.write()

    def write(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        kept = {
            "schema": SCHEMA,
            "question": dataclasses.asdict(self.question),
            "expected": dataclasses.asdict(self.expected),
            "done": self._done,
        }
        write_json(self.root / FILE, kept)


def recall(root: Path, question: Question) -> Progress | None:
    """What an earlier call in this folder was to do; None where there was none."""
    file = root / FILE
    if not file.is_file():
        return None
    try:
        kept = read_json(file)
        asked, expected = dict(kept["question"]), dict(kept["expected"])
        asked = {key: tuple(v) if isinstance(v, list) else v for key, v in asked.items()}
        for key in ("cost", "loss"):
            if expected[key] is not None:
                expected[key] = tuple(expected[key])
        progress = Progress(
            root, Question(**asked), Expectation(**expected), [str(s) for s in kept["done"]]
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{file} is damaged", hint="name another folder with --out, or remove that file"
        ) from None
    if progress.question != question:
        was = " ".join([*progress.question.words, *(["--data", d] if (d := asked["data"]) else [])])
        raise UserError(
            f"{root} was started with other options ({was})",
            hint="repeat that command to continue, or name another folder with --out",
        )
    return progress
