"""After a probe: predicted step time against real `onecard` steps, for six shapes that were not probed.

    python bench/probe_accuracy.py [--seconds 75] [--json]

Two widths, two depths, two micro-batches, a small vocabulary and GPT-2's. Probes into a folder of its own, so that a
calibration you keep is not touched. On a busy machine the figures say more about the neighbours than about the model.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def shapes(kind: str):
    from onecard.config import RunConfig

    if kind == "cpu":
        table = [(192, 3, 3, 128, 512), (320, 5, 6, 128, 512), (192, 5, 6, 128, 512), (320, 3, 3, 128, 512),
                 (192, 3, 3, 128, 50304), (320, 5, 6, 128, 50304)]  # fmt: skip
    else:
        table = [(512, 8, 12, 1024, 512), (896, 10, 6, 1024, 512), (512, 10, 6, 1024, 50304), (896, 8, 12, 1024, 50304),
                 (512, 8, 6, 1024, 50304), (896, 10, 6, 1024, 50304)]  # fmt: skip
    return [
        RunConfig(n_embd=width, n_head=width // 64, n_layer=layers, batch_size=batch, block_size=block, vocab_size=vocab,
                  gradient_accumulation_steps=1, compile=kind == "cuda")
        for width, layers, batch, block, vocab in table
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONECARD_HOME"] = folder
        from onecard.facts.here import cpu, here
        from onecard.plan.calibration import load_calibration
        from onecard.plan.speed import step_time
        from onecard.train.machine import choose_device, precision_of
        from onecard.train.probe import probe, save, time_shapes

        device = choose_device(args.device)
        known = cpu() if device.type == "cpu" else here()
        dtype = precision_of("auto", device).dtype
        save(probe(device, known, args.seconds))
        calibration = load_calibration(known)
        rows = []
        for config, measured in time_shapes(shapes(device.type), device, args.seconds * 0.5):
            found = step_time(config, known, dtype, calibration=calibration)
            name = f"{config.n_layer}L/{config.n_embd} B{config.batch_size} V{config.shape.vocab_size}"
            rows.append({"shape": name, "predicted": found.seconds.mid, "low": found.seconds.low, "high": found.seconds.high,
                         "measured": measured, "error": found.seconds.mid / measured - 1, "basis": found.basis})  # fmt: skip
    errors = sorted(abs(row["error"]) for row in rows)
    middle = (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2
    held = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
    result = {
        "n": len(rows),
        "median_abs_error": middle,
        "worst_abs_error": errors[-1],
        "coverage": held / len(rows),
        "rows": rows,
    }
    if args.json:
        print(json.dumps(result))
        return 0
    for row in rows:
        print(
            f"{row['shape']:24}{row['predicted'] * 1e3:9.1f} ms predicted{row['measured'] * 1e3:9.1f} ms measured{row['error']:+8.1%}"
        )
    print(f"median {middle:.1%} (asked: 5 %), worst {errors[-1]:.1%} (asked: 12 %), {held} of {len(rows)} in range")
    return 0


if __name__ == "__main__":
    sys.exit(main())
