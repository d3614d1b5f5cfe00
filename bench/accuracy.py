"""Predicted against measured memory and time, for any table in the layout of fit/data/public_runs.csv.

    python bench/accuracy.py RUNS.csv [--json] [--cross-validate] [--quality ABC]

Each row is predicted from its configuration and its card alone. A row that cannot be is listed with the reason. Stacks other
than PyTorch are predicted as what PyTorch would do, and marked. --cross-validate fits the speed constants anew for each
source family, from the public runs of all other families: what it says is about runs the constants never saw.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.memory import reading_of  # noqa: E402
from fit.runs import Run, all_runs, read_runs  # noqa: E402

from bench.score import Answer, by_family, family_mean, percent, score  # noqa: E402
from onecard.errors import OnecardError  # noqa: E402
from onecard.plan.flops import model_flops  # noqa: E402
from onecard.plan.memory import step_memory  # noqa: E402
from onecard.plan.result import Range  # noqa: E402
from onecard.plan.speed import workload_time  # noqa: E402

RULE_MFU = 0.4  # the rule of thumb: a well-fed card reaches 40 % of its peak


def predict(
    runs: list[Run], fits: dict[str, Any] | None = None, memory_fits: dict[str, Any] | None = None
) -> list[Answer]:
    """Two answers a row, memory and time; skipped ones say why."""
    return [
        answer
        for run in runs
        for answer in (_memory(run, (memory_fits or {}).get(run.family)), _time(run, (fits or {}).get(run.family)))
    ]


def _base(run: Run, kind: str) -> dict[str, Any]:
    note = "; ".join([*run.assumed, *(["predicted as PyTorch"] if run.foreign else [])])
    return {"id": run.id, "family": run.family, "kind": kind, "note": note, "foreign": run.foreign,
            "quality": run.quality}  # fmt: skip


def _time(run: Run, fit: Any) -> Answer:
    base = _base(run, "time")
    if run.trouble or run.time_trouble:
        return Answer(**base, skipped=run.trouble or run.time_trouble)
    assert run.workload is not None
    assert run.device is not None
    seconds = workload_time(run.workload, run.device, fit=fit).seconds
    return _answer(base, seconds, run.step_seconds, "no time was measured")


def _memory(run: Run, fit: Any = None) -> Answer:
    base = _base(run, "memory")
    if run.trouble or run.memory_trouble:
        return Answer(**base, skipped=run.trouble or run.memory_trouble)
    assert run.workload is not None
    assert run.device is not None
    try:
        memory = step_memory(run.workload, run.device, fit)
    except (ArithmeticError, ValueError, KeyError) as error:
        return Answer(**base, skipped=f"no memory model: {error}")
    reading = reading_of(memory, run)
    return _answer(base, reading.scaled(1 / run.memory_unit), run.memory_gb, "no memory was measured")


def _answer(base: dict[str, Any], found: Range, measured: float | None, nothing: str) -> Answer:
    return Answer(**base, predicted=found.mid, low=found.low, high=found.high, measured=measured,
                  skipped=None if measured is not None else nothing)  # fmt: skip


def rule_of_thumb(runs: list[Run]) -> list[Answer]:
    """The single-MFU rule on the same rows: model FLOPs over 40 % of the card's peak."""
    answers = []
    for run in runs:
        if run.workload is None or run.device is None or run.step_seconds is None:
            continue
        w = run.workload
        flops = model_flops(w) * w.tokens * w.accumulation
        seconds = flops / (RULE_MFU * run.device.peak_flops(w.dtype))
        answers.append(
            Answer(**_base(run, "time"), predicted=seconds, low=seconds, high=seconds, measured=run.step_seconds)
        )
    return answers


def llm_analysis(runs: list[Run]) -> list[Answer] | None:
    """The same rows by llm-analysis, where it is installed; None where it is not. Its own defaults, but the row's shape."""
    try:
        from llm_analysis.analysis import LLMAnalysis
        from llm_analysis.config import GPUConfig, ModelConfig
    except ImportError:
        return None
    answers = []
    for run in runs:
        if run.workload is None or run.device is None or run.step_seconds is None:
            continue
        w, d = run.workload, run.device
        try:
            model = ModelConfig(name="row", num_layers=w.n_layer, n_head=w.n_head, hidden_dim=w.n_embd,
                                vocab_size=w.vocab_size, max_seq_len=w.block_size, ffn_embed_dim=w.ff_width,
                                num_key_value_heads=w.n_kv_head or w.n_head)  # fmt: skip
            gpu = GPUConfig(name="row", mem_per_GPU_in_GB=d.memory_bytes / 2**30, hbm_bandwidth_in_GB_per_sec=d.bandwidth / 1e9,
                            intra_node_bandwidth_in_GB_per_sec=300, inter_node_bandwidth_in_GB_per_sec=25,
                            peak_fp16_TFLOPS=d.peak_flops(w.dtype) / 1e12)  # fmt: skip
            found = LLMAnalysis(model, gpu, flops_efficiency=None, hbm_memory_efficiency=None).training(
                batch_size_per_gpu=w.batch_size, gradient_accumulation_steps=max(1, round(w.accumulation)),
                seq_len=w.block_size, total_num_tokens=1, dp_size=w.gpus, output_dir=None,
            )  # fmt: skip
            seconds = float(found["latency_per_iter"])
        except Exception:  # a peer's own trouble with a row is not ours to mend
            continue
        answers.append(
            Answer(**_base(run, "time"), predicted=seconds, low=seconds, high=seconds, measured=run.step_seconds)
        )
    return answers


def summary(answers: list[Answer]) -> dict[str, Any]:
    """In all, by family, and the mean over families; PyTorch's own rows apart."""
    kinds: dict[str, Any] = {}
    for kind in ("memory", "time"):
        kept = [a for a in answers if a.kind == kind]
        own = [a for a in kept if not a.foreign]
        families = {f: s for f, s in by_family(kept).items() if s["n"]}
        own_families = {f: s for f, s in by_family(own).items() if s["n"]}
        kinds[kind] = {
            **score(kept),
            "pytorch": {**score(own), "mean_of_family_medians": family_mean(own_families, "median_abs_error")},
            "mean_of_family_medians": family_mean(families, "median_abs_error"),
            "families": families,
        }
    families = {
        f: {k: kinds[k]["families"].get(f, score([])) for k in kinds} for k in kinds for f in kinds[k]["families"]
    }
    return {**kinds, "families": families}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+", metavar="RUNS.csv")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cross-validate", action="store_true", help="refit, leaving each family out")
    parser.add_argument("--quality", default="", help="only rows of these qualities, e.g. AB; default: all")
    args = parser.parse_args(argv)
    try:
        runs = [run for table in args.tables for run in read_runs(table)]
    except OnecardError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return error.exit_code
    if args.quality:
        runs = [run for run in runs if run.quality in args.quality]
    fits = memory_fits = None
    if args.cross_validate:
        from fit.memory import cross_validated
        from fit.speed import fit_speed, leave_out, spread

        known = all_runs()
        held_out = leave_out(known)
        fits = {}
        for family in sorted({run.family for run in runs}):
            others = [run for run in known if run.family != family]
            fit = held_out.get(family) or fit_speed(others)[0]
            fits[family] = {**fit, "spread": spread(others, held_out)}  # the range too comes from the others
        memory_fits = cross_validated({run.family for run in runs})
    answers = predict(runs, fits, memory_fits)
    thumb = rule_of_thumb(runs)
    peer = llm_analysis(runs)
    found = summary(answers)
    if args.json:
        peers = {"single_mfu": {"time": {**score(thumb), "families": by_family(thumb)}}}
        if peer is not None:
            peers["llm_analysis"] = {"time": {**score(peer), "families": by_family(peer)}}
        print(
            json.dumps({**found, "peers": peers, "cross_validated": bool(fits), "rows": [a.as_json() for a in answers]})
        )
        return 0
    _print(answers, found, thumb, peer)
    return 0


def _print(answers: list[Answer], found: dict[str, Any], thumb: list[Answer], peer: list[Answer] | None) -> None:
    for kind in ("memory", "time"):
        print(f"\n{kind:28}{'rows':>6}{'median':>9}{'p90':>9}{'bias':>9}{'in range':>10}")
        for family, each in found[kind]["families"].items():
            print(_line(family, each))
        print(_line("all rows", found[kind]))
        print(_line("PyTorch rows", found[kind]["pytorch"]))
        print(f"{'mean of family medians':28}{'':6}{percent(found[kind]['mean_of_family_medians']):>9}"
              f"   PyTorch {percent(found[kind]['pytorch']['mean_of_family_medians'])}")  # fmt: skip
        if kind == "time":
            print(_line(f"rule of thumb, MFU {RULE_MFU:.0%}", score(thumb)))
            print(_line("llm-analysis", score(peer)) if peer is not None else "llm-analysis is not installed")
    print("\nnot predicted or not comparable:")
    for answer in answers:
        if answer.skipped and not answer.skipped.startswith(("no time was", "no memory was")):
            print(f"  {answer.id:8}{answer.kind:8}{answer.skipped}")


def _line(name: str, each: dict[str, Any]) -> str:
    figures = "".join(f"{percent(each[key]):>9}" for key in ("median_abs_error", "p90_abs_error", "bias"))
    return f"{name:28}{each['n']:>6}{figures}{percent(each['coverage']):>10}"


if __name__ == "__main__":
    sys.exit(main())
