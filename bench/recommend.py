"""How long `onecard recommend` takes beside `onecard plan`: both from the shell, in turn, medians, as a ratio.

python bench/recommend.py            # 15 rounds; the ratio must stay below 3
"""

import argparse
import statistics
import subprocess
import sys
import time

PLAN = ["plan", "gpt2", "--gpu", "RTX 4070", "--lang", "en"]
QUESTIONS = {
    "recommend": ["recommend", "--gpu", "RTX 4070", "--hours", "20", "--lang", "en"],
    "recommend --until-loss": [
        "recommend",
        "--gpu",
        "RTX 4070",
        "--until-loss",
        "3.1",
        "--lang",
        "en",
    ],
    "recommend --rent": [
        "recommend",
        "--gpu",
        "RTX 4090",
        "--hours",
        "20",
        "--rent",
        "--lang",
        "en",
    ],
    "can": ["can", "gpt2-xl", "--gpu", "RTX 4070 Ti", "--lang", "en"],
}
LIMIT = 3.0  # recommend over plan


def seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "onecard", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    seconds(PLAN)  # the first start fills the disk cache
    times: dict[str, list[float]] = {name: [] for name in QUESTIONS}
    plans: list[float] = []
    for _ in range(rounds):
        plans.append(seconds(PLAN))
        for name, words in QUESTIONS.items():
            times[name].append(seconds(words))
    plan = statistics.median(plans)
    print(f"{'plan':24} {plan * 1000:6.0f} ms")
    ratios = {name: statistics.median(each) / plan for name, each in times.items()}
    for name, ratio in ratios.items():
        print(f"{name:24} {ratio * plan * 1000:6.0f} ms   {ratio:.2f} × plan")
    return int(ratios["recommend"] >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
