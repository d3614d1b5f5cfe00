"""Another project's code: planned as it would run it, and recognised in other people's tables."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fit.conformal import Miss, interval, ranges
from fit.projects import stack_of
from fit.runs import read_runs

from onecard import RunConfig, plan
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.planner.card_rate import speed_fit
from onecard.planner.memory import step_memory
from onecard.planner.stacks import OWN, STACKS
from onecard.planner.step_counts import layer_bytes, micro_kernels
from onecard.planner.step_time import single_step, step_parts

CONFIG = RunConfig(batch_size=8, gradient_accumulation_steps=64)


def test_every_stack_has_a_plan_and_ours_the_narrowest_range():
    own = plan(CONFIG, "RTX 4070")
    wide = own.memory.process_bytes.high / own.memory.process_bytes.mid
    for stack in STACKS:
        found = plan(CONFIG, "RTX 4070", stack=stack)
        seconds, memory = found.time.step_seconds, found.memory.process_bytes
        assert seconds.low < seconds.mid < seconds.high
        assert memory.high / memory.mid >= wide
        assert ("stack" in [note.code for note in found.warnings]) == (stack != "onecard")
        assert found.loss == own.loss


def test_code_that_neither_compiles_nor_chunks_takes_more():
    own, plain = (plan(CONFIG, "RTX 4070", stack=stack) for stack in ("onecard", "plain-pytorch"))
    assert plain.time.step_seconds.mid > 1.2 * own.time.step_seconds.mid
    assert plain.memory.allocated_bytes.mid > 1.2 * own.memory.allocated_bytes.mid


def test_an_unknown_stack_is_named_with_the_known_ones():
    with pytest.raises(UserError, match="unknown stack 'keras'"):
        plan(CONFIG, "RTX 4070", stack="keras")
    words = [sys.executable, "-m", "onecard", "plan", "gpt2", "--gpu", "4070", "--stack", "keras"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nanochat" in done.stderr


@pytest.mark.parametrize(
    ("framework", "stack"),
    [
        ("nanogpt", "nanogpt"),
        ("build-nanogpt style, windows", "nanogpt"),
        ("nanogpt (feb 2023, torch 2.0 nightly)", "nanogpt, 2023"),
        ("hf/llama-factory", "hf"),
        ("llm.c train_gpt2.py fork / modded-nanogpt style pytorch 2.5.1", "modded"),
        ("llm.c", "llm.c"),
        ("cs336 custom pytorch", "textbook"),
        ("autoresearch train.py (nanochat-derived)", "nanochat"),
        ("tinyllama (lit-gpt)", "litgpt"),
        ("something else", "plain-pytorch"),
    ],
)
def test_whose_code_ran(framework: str, stack: str):
    assert stack_of(framework) == stack


def test_modded_nanogpt_before_muon_is_nanogpts_code():
    assert stack_of("modded-nanogpt fork", optimizer="adamw") == "nanogpt"
    assert stack_of("modded-nanogpt fork", optimizer="muon+adamw") == "modded"


def test_norms_written_out_cost_more_where_nothing_fuses_them(tmp_path: Path):
    eager = {"framework": "custom", "compile": "no", "dtype": "bf16 autocast"}
    plain = row(tmp_path, **eager, model="GPT-2").workload
    rotary = row(tmp_path, **eager, model="RoPE, RMSNorm").workload
    assert layer_bytes(rotary, speed_fit()) > 1.5 * layer_bytes(plain, speed_fit())
    own = replace(rotary, stack=OWN)  # whose norms are one kernel
    assert layer_bytes(own, speed_fit()) < 0.8 * layer_bytes(rotary, speed_fit())
    fused = {"framework": "custom", "compile": "yes", "dtype": "bf16 autocast"}
    compiled = row(tmp_path, **fused, model="RoPE, RMSNorm").workload
    assert layer_bytes(compiled, speed_fit()) < 0.5 * layer_bytes(rotary, speed_fit())


def test_a_norm_that_is_one_kernel_is_not_counted_as_written_out(tmp_path: Path):
    eager = {"framework": "custom", "compile": "no", "dtype": "bf16 autocast"}
    model = "RoPE/RMSNorm/QK-norm"
    written = row(tmp_path, **eager, model=model, notes="RMSNorm in fp32 steps").workload
    kernel = row(tmp_path, **eager, model=model, notes="torch's own RMSNorm").workload
    assert kernel.norm_kernel
    assert not written.norm_kernel
    assert layer_bytes(kernel, speed_fit()) < 0.8 * layer_bytes(written, speed_fit())
    assert micro_kernels(kernel) < micro_kernels(written)


def row(tmp_path: Path, **changes: str):
    values = {
        "id": "a",
        "source_family": "f",
        "gpu": "RTX 3090",
        "framework": "nanochat",
        "n_layer": "8",
        "n_head": "8",
        "n_embd": "512",
        "vocab_size": "32768",
        "block_size": "1024",
        "micro_batch": "8",
        "grad_accum": "1",
        "peak_vram_gb": "8",
        **changes,
    }
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(values)}\n{','.join(values.values())}\n")
    return read_runs(path)[0]


def test_words_that_change_what_a_row_means(tmp_path: Path):
    assert not row(tmp_path, optimizer="AdamW custom (unfused)").workload.fused_optimizer
    assert not row(tmp_path, flash_sdpa="SDPA fallback", flags="SDPA masks").workload.flash
    assert row(tmp_path, notes="no value embeds").workload.value_tables == 0
    assert row(tmp_path, attn_window_factor="0.4375").workload.value_tables == 4
    assert row(tmp_path, notes="head_dim=128").workload.head_width == 128
    converted = row(tmp_path, vram_method="torch peak allocated (GiB->GB)")
    assert converted.memory_unit == 1e9
    both = row(tmp_path, vram_method="torch max_memory_allocated (reserved 10200 MiB)")
    assert both.memory_reading == "allocated"
    assert both.memory_unit == 1e9
    # a peak is torch's counter, wherever the row says no more; what stands in brackets counts where nothing else does
    assert row(tmp_path, vram_method="peak VRAM of the report").memory_reading == "allocated"
    assert row(tmp_path, vram_method="the log (torch memory_reserved)").memory_reading == "reserved"
    assert row(tmp_path, vram_method="nvidia-smi (peak)").memory_reading == "process"
    assert row(tmp_path, notes="loss in chunks of 4096 tokens").workload.chunked_loss
    assert row(tmp_path, dtype="fp8").workload.kept_half_bytes
    assert not row(tmp_path, dtype="bf16 (fp8 head)").workload.kept_half_bytes
    assert not row(tmp_path, framework="build-nanogpt (copy)").workload.compiled
    long = row(tmp_path, block_size="32768", flash_sdpa="flex", notes="doc masked")
    assert long.workload.window < 0.05


def test_a_narrow_mlp_is_found_in_the_words_or_the_parameters(tmp_path: Path):
    shape = {"framework": "modded-nanogpt", "vocab_size": "1024", "n_kv_head": "4"}
    assert row(tmp_path, **shape).workload.ff_width == 4 * 512
    named = row(tmp_path, **shape, model="17M SwiGLU(704)").workload
    assert (named.ff_width, named.gated) == (704, True)
    counted = row(tmp_path, **shape, n_layer="9", tied_embeddings="yes", n_params_m="17.06")
    assert counted.workload.ff_width == 1024
    # more than four widths would ask for: other tables, not a wider MLP; rounded counts are no news
    assert row(tmp_path, **shape, n_params_m="99").workload.ff_width == 4 * 512
    assert row(tmp_path, n_params_m="59", tied_embeddings="no").workload.ff_width == 4 * 512


def test_memory_of_other_peoples_updates(tmp_path: Path):
    small = {"framework": "custom", "micro_batch": "1", "block_size": "64", "vocab_size": "256"}
    weights = 4 * 12 * 8 * 512**2

    def allocated(**changes: str) -> float:
        run = row(tmp_path, **{**small, **changes})
        return step_memory(run.workload, run.device).allocated.mid / weights

    # torch's foreach loops take the root of all second moments at once; others go tensor by tensor
    assert allocated() > allocated(optimizer="AdamW custom loop") + 0.8
    assert allocated(optimizer="Adafactor") < allocated(optimizer="AdamW custom loop") - 1.5
    assert (
        allocated(optimizer="Adafactor fused in backward") < allocated(optimizer="Adafactor") - 0.3
    )
    checkpointed = allocated(optimizer="Adafactor", act_ckpt="yes; optimizer fused in backward")
    assert checkpointed < allocated(optimizer="Adafactor", act_ckpt="yes") - 0.5


def test_learned_scales_keep_what_they_scale(tmp_path: Path):
    golf = row(tmp_path, framework="parameter-golf train_gpt.py").workload
    plain = replace(golf, scaled_branches=False)
    scaled, without = (step_memory(w, find_gpu("RTX 3090")).allocated.mid for w in (golf, plain))
    kept = 2 * 3 * golf.n_embd * golf.tokens * golf.n_layer  # three bf16 tensors a layer
    assert scaled - without == pytest.approx(kept, rel=0.01)


def test_a_split_update_is_shared_by_the_cards(tmp_path: Path):
    words = {"gpu": "H100 SXM", "n_gpus": "8", "parallelism": "DDP8", "optimizer": "Muon"}
    words |= {"n_layer": "24", "n_embd": "2048"}
    alone = row(tmp_path, **{**words, "optimizer": "Muon (not distributed)"})
    shared = row(tmp_path, **words)
    parts = [step_parts(run.workload, run.device, speed_fit()) for run in (alone, shared)]
    assert parts[1]["optimizer"] < 0.5 * parts[0]["optimizer"]
    assert parts[1]["matmul"] == parts[0]["matmul"]


def test_code_written_to_be_read_waits_for_its_host(tmp_path: Path):
    """Where nothing compiles it: other people's eager code has less Python between its kernels."""
    words = {"framework": "cs336 custom pytorch", "micro_batch": "1", "gpu": "H100 SXM"}
    for compiled, more in (("no", 2.0), ("yes", 1.0)):
        run = row(tmp_path, **words, compile=compiled)
        found = [
            step_parts(run.workload, run.device, {**speed_fit(), "textbook_host": slower})["launch"]
            for slower in (4.0, 40.0)
        ]
        assert found[1] >= more * found[0]
        assert compiled == "no" or found[1] == found[0]


def test_a_step_after_every_micro_batch_costs_other_people_s_eager_code(tmp_path: Path):
    """What is done once a step counts less the more micro-batches a step has; compiled code and ours do without."""
    words = {"framework": "pytorch", "micro_batch": "8", "gpu": "RTX 4090"}
    eager = row(tmp_path, **words, compile="no").workload
    factors = [single_step(replace(eager, accumulation=count), speed_fit()) for count in (1, 2, 64)]
    assert factors[0] == speed_fit()["single_step"] > factors[1] > factors[2] > 1
    for other in (replace(eager, compiled=True), replace(eager, stack=OWN)):
        assert single_step(other, speed_fit()) == 1


def test_a_range_holds_what_it_promises():
    """Families drawn alike: the range of all others holds a new one's row at least 80 % of the time."""
    sizes = [((i * 7919) % 997) / 997 - 0.5 for i in range(60)]
    held = 0
    for left in range(60):
        low, high = interval({str(i): [s] for i, s in enumerate(sizes) if i != left})
        held += low <= sizes[left] <= high
    assert 0.8 * 60 <= held <= 0.92 * 60


def test_harder_kinds_have_wider_ranges():
    rows = [Miss("own", f"a{i}", 0.01 * (i - 10)) for i in range(21)]
    rows += [Miss("odd", f"b{i}", 0.05 * (i - 10)) for i in range(21)]
    found = ranges(rows, ("own", "odd"))
    assert found["odd"][1] > 2 * found["own"][1] > 0
    assert found["odd"][0] < 2 * found["own"][0] < 0


def test_the_shipped_ranges_are_what_is_planned():
    low, high = speed_fit()["spread"]["own"]
    seconds = plan(CONFIG, "RTX 4070").time.step_seconds
    assert seconds.low == pytest.approx(low * seconds.mid)
    assert seconds.high == pytest.approx(high * seconds.mid)
