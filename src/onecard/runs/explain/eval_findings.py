"""What the kept evaluations of a run mean beside the released GPT-2 sizes."""

from collections.abc import Iterator

from onecard.messages import Note
from onecard.runs.eval_meaning import meaning_of
from onecard.runs.eval_results import TASK_TITLES, main_figure, newest
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding


def benchmark(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to tasks without known figures under the same protocol."""
    for task, result in newest(list(f.run.results)).items():
        figure, meaning = main_figure(result), meaning_of(result)
        if figure is None or meaning is None:
            continue
        yield Finding(
            Note(
                "benchmark",
                task=TASK_TITLES.get(task, task),
                value=figure.value,
                step=result.step,
                meaning=meaning,
            ),
            {
                "task": task,
                "figure": figure.name,
                "value": figure.value,
                "low": figure.low,
                "high": figure.high,
                "protocol": result.protocol,
            },
        )


RULES = (benchmark,)
