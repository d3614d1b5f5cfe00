"""README.md of an exported model, written from the run's own record: nothing in it that the run did not log.

    text = model_card(trained, "hf", results)

Figures that the record does not have are left out; text from outside (names of data sets, licences) is made harmless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.data.tokenizers.special import has_chat_tokens
from onecard.errors import OnecardError
from onecard.export.trained import Trained
from onecard.planner.params import params
from onecard.runs.eval_results import Result
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord
from onecard.units import show_count, show_duration
from onecard.untrusted import finite, printable
from onecard.version import __version__

_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH"{trust})
ids = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=100)[0]))
```"""

_USE_CHAT = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH"{trust})
talk = [{{"role": "user", "content": "Hello"}}]
ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**ids, max_new_tokens=100)[0, ids["input_ids"].shape[1]:]
print(tokenizer.decode(answer, skip_special_tokens=True))
```"""


_USE_GGUF = """```sh
llama-cli -m model-*.gguf -p "Once upon a time" -n 100   # llama.cpp
ollama create mine -f Modelfile && ollama run mine "Once upon a time"
```"""

_USE_NANOGPT = """In nanoGPT's folder, with PATH as this one:

```sh
python sample.py --out_dir=PATH --start="Once upon a time"
python train.py --out_dir=PATH --init_from=resume --dataset=NAME
```"""

_LIBRARIES = {"hf": "transformers", "gguf": "gguf"}  # as the hub names them


@dataclass(frozen=True)
class Trace:
    """What the log says of the whole run."""

    tokens: int | None = None
    seconds: float | None = None
    kwh: float | None = None
    val_loss: float | None = None
    val_step: int | None = None
    device: str | None = None


def model_card(trained: Trained, to: str, results: Sequence[Result] = ()) -> str:
    """Markdown with the hub's YAML head, for an export to `hf`, `gguf` or `nanogpt`."""
    trace = read_trace(trained.run_folder)
    sources = _sources(trained.run_folder, trained.config.dataset)
    parts = [
        _head(sources, to),
        f"# {_cell(trained.run_folder.name) or 'onecard model'}",
        _what(trained),
        "## How to use it\n\n" + _use(trained, to),
        "## Training data\n\n" + _data_table(sources, trained.config.dataset),
        "## Training\n\n" + _training(trained, trace),
        "## Predicted and actual\n\n" + _predicted(trained.run_folder, trace),
        "## Evaluation\n\n" + _evaluation(trace, results, trained.step),
        "## Limits\n\n" + _limits(trained),
        f"Made with onecard {__version__}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def read_trace(folder: Path) -> Trace:
    """The figures of the run's log; empty where there is none."""
    tokens = seconds = kwh = val_loss = val_step = device = None
    path = folder / "log.jsonl"
    for line in read_log(path) if path.is_file() else ():
        if line.get("kind") == "start":
            device = line.get("device")
        elif line.get("kind") == "step":
            tokens, seconds = line.get("tokens"), line.get("seconds")
            kwh = line.get("kwh") if line.get("kwh") is not None else kwh
        elif line.get("kind") == "eval":
            val_loss, val_step = line.get("val_loss"), line.get("step")
    return Trace(
        tokens=tokens if isinstance(tokens, int) else None,
        seconds=finite(seconds),
        kwh=finite(kwh),
        val_loss=finite(val_loss),
        val_step=val_step if isinstance(val_step, int) else None,
        device=device if isinstance(device, str) else None,
    )


def _head(sources: list[dict[str, Any]], to: str) -> str:
    licences = {str(s["licence"]) for s in sources if s.get("licence")}
    lines = [
        "---",
        *([f"library_name: {_LIBRARIES[to]}"] if to in _LIBRARIES else []),
        "pipeline_tag: text-generation",
        "tags:",
        "- onecard",
    ]
    if len(licences) == 1:
        lines.append(f"# the data's licence: {_cell(licences.pop())}")
    return "\n".join([*lines, "---"])


def _what(trained: Trained) -> str:
    config, count = trained.config, params(trained.config.shape)
    kind = "onecard's modern recipe" if config.shape.modern else "GPT-2's architecture"
    return (
        f"A language model of {show_count(count.total)} parameters, {_origin(trained)}: {kind}, "
        f"{_several(config.n_layer, 'layer')}, {_several(config.n_head, 'head')}, width {config.n_embd}, context "
        f"{config.block_size}, {trained.vocab_size:,} tokens in the vocabulary "
        f"({trained.tokenizer.name}). Checkpoint of step {trained.step:,}."
    )


def _origin(trained: Trained) -> str:
    if trained.config.learn_from == "all":
        return "trained from scratch"
    return f"tuned on conversations from `{_cell(Path(trained.config.init_from).name)}`"


def _use(trained: Trained, to: str) -> str:
    if to != "hf":
        return _USE_GGUF if to == "gguf" else _USE_NANOGPT
    trust = ", trust_remote_code=True" if trained.config.shape.modern else ""
    return (_USE_CHAT if has_chat_tokens(trained.tokenizer) else _USE).format(trust=trust)


def _data_table(sources: list[dict[str, Any]], dataset: str) -> str:
    if not sources:
        return f"Data set: `{_cell(Path(dataset).name)}`. Its sources were not recorded."
    rows = ["| source | share | licence |", "|---|---|---|"]
    for source in sources:
        share = source.get("share")
        rows.append(
            f"| {_cell(_public_name(source.get('uri')))} "
            f"| {f'{share:.1%}' if isinstance(share, float) else '–'} "
            f"| {_cell(source.get('licence') or 'not recorded')} |"
        )
    return "\n".join(rows)


def _training(trained: Trained, trace: Trace) -> str:
    config = trained.config
    rows = {
        "steps": f"{trained.step:,} of {config.tokens_per_step:,} tokens",
        "tokens": show_count(trace.tokens) if trace.tokens else None,
        "recipe": f"{config.recipe}, {config.optimizer}, learning rate {config.learning_rate:g}",
        "precision": config.dtype,
        "card": _cell(trace.device) if trace.device else None,
        "time": show_duration(trace.seconds) if trace.seconds else None,
        "energy": f"{trace.kwh:.2f} kWh" if trace.kwh else None,
    }
    return _table(rows)


def _predicted(folder: Path, trace: Trace) -> str:
    plan = RunRecord(folder).plan() or {}
    loss, hours = (
        _path(plan, "loss", "expected", "mid"),
        _path(plan, "time", "total_seconds", "mid"),
    )
    rows = []
    if loss is not None and trace.val_loss is not None:
        rows.append(f"| validation loss | {loss:.3f} | {trace.val_loss:.3f} |")
    if hours is not None and trace.seconds is not None:
        rows.append(f"| time | {show_duration(hours)} | {show_duration(trace.seconds)} |")
    if not rows:
        return "The run has no recorded prediction for what it logged."
    return "\n".join(["| | predicted | actual |", "|---|---|---|", *rows])


def _evaluation(trace: Trace, results: Sequence[Result], step: int) -> str:
    lines = []
    if trace.val_loss is not None:
        lines.append(
            f"Validation loss {trace.val_loss:.4f} nats per token at step {trace.val_step:,} "
            "(on the run's own validation split; not comparable across tokenisers)."
        )
    rows = [_result_row(result) for result in results if result.step == step]
    if rows:
        head = ["| task | figures (95 % interval) | items | protocol |", "|---|---|---|---|"]
        lines += ["", *head, *rows]
    return "\n".join(lines) or "Not evaluated."


def _result_row(result: Result) -> str:
    parts = []
    for figure in result.figures:
        if figure.low is None or figure.high is None:
            parts.append(f"{figure.name} {figure.value:.4g}")
        else:
            span = f"{figure.low:.1%} to {figure.high:.1%}"
            parts.append(f"{figure.name} {figure.value:.1%} ({span})")
    of = f" of {result.of:,}" if result.of else ""
    unit = " bytes" if result.task.startswith("text ") else ""
    task, figures = _cell(result.task), _cell("; ".join(parts))
    return f"| {task} | {figures} | {result.items:,}{of}{unit} | {_cell(result.protocol)} |"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _limits(trained: Trained) -> str:
    kind = (
        "A base model: it continues text and follows no instructions."
        if trained.config.learn_from == "all"
        else "Tuned on conversations: it answers, whether or not it knows."
    )
    return (
        f"{kind} It repeats what its data "
        "holds, errors and prejudice included, and states falsehoods fluently. Nothing was done to "
        f"make it safe. It sees at most {trained.config.block_size:,} tokens at a time."
    )


def _sources(folder: Path, dataset: str) -> list[dict[str, Any]]:
    """The data's sources by its manifest: the copy in the run folder, or the data folder itself."""
    from onecard.data import kept_record, read_manifest, resolve

    try:
        manifest = kept_record(folder / "data").get("manifest")
        sources = manifest.get("sources") if isinstance(manifest, dict) else None
        if isinstance(sources, list):
            return [source for source in sources if isinstance(source, dict)]
    except OnecardError:
        pass  # an older run, whose data folder may still be there
    try:
        return [dict(source) for source in read_manifest(resolve(dataset)).sources]
    except (OnecardError, OSError):
        return []


def _public_name(uri: Any) -> str:
    """A source's address without the folders of the machine it was read on."""
    text = str(uri or "unnamed")
    return Path(text).name if text.startswith(("/", ".", "~", "file:")) or ":\\" in text else text


def _table(rows: dict[str, str | None]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    return printable(str(value or "")).replace("|", "\\|").replace("<", "&lt;")


def _path(value: Any, *keys: str) -> float | None:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return finite(value)
