"""The costs of a device's kinds of work, fitted to the real steps of a probe, and how far to trust them.

Non-negative least squares, held near what the probe's matmuls, copies and tiny operations took.
"""

from collections.abc import Mapping, Sequence

from onecard.planner.calibration import MOST_SPREAD, Observation, own_miss
from onecard.planner.least_squares import non_negative_least_squares
from onecard.planner.step_counts import alone, micro_kernels
from onecard.planner.step_work import Costs, predicted, work

_NOISE = 0.02  # relative error of one measured step: what the median of a dozen steps leaves on a quiet machine
_TRUST = 0.7  # how well a micro-benchmark predicts a cost, as a share of it; steps that say otherwise move it further
_LEAST_SHARE = 0.05  # of its hint, that every kind of work costs
_LEAST_SPREAD = 0.04  # two equal runs on an idle machine differ by about this


def fit_costs(
    observations: Sequence[Observation], hints: Mapping[str, float], host_seconds: float = 0.0
) -> Costs:
    """The costs that explain the observed steps best in relative terms, each held loosely near its hint.

    Where the host's launching alone takes as long as the step did, the step says nothing of the card.
    """
    rows, wanted = [], []
    for seen in observations:
        host = micro_kernels(seen.work) * seen.work.accumulation * host_seconds
        if host > 0.8 * seen.seconds:
            continue
        busy = alone(seen.seconds, host)
        amounts = work(seen.work)
        rows.append([amounts[kind] * hints[kind] / busy / _NOISE for kind in hints])
        wanted.append(1 / _NOISE)
    for place in range(len(hints)):
        rows.append([float(place == other) / _TRUST for other in range(len(hints))])
        wanted.append(1 / _TRUST)
    # what lies above the least share: no work is ever free, however a disturbed probe came out
    above = [value - _LEAST_SHARE * sum(row) for row, value in zip(rows, wanted, strict=True)]
    shares = non_negative_least_squares(rows, above)
    return {
        kind: (_LEAST_SHARE + share) * hints[kind]
        for kind, share in zip(hints, shares, strict=True)
    }


def spread_of(
    observations: Sequence[Observation], hints: Mapping[str, float], host_seconds: float = 0.0
) -> float:
    """Half the 80 % range: each step predicted from costs that were fitted without it.

    At most MOST_SPREAD, unless the costs fitted to all steps miss those very steps by more: the machine was disturbed.
    """
    errors = []
    for place, seen in enumerate(observations):
        others = [*observations[:place], *observations[place + 1 :]]
        costs = fit_costs(others, hints, host_seconds)
        errors.append(predicted(seen.work, costs, host_seconds) / seen.seconds - 1)
    if not errors:
        return MOST_SPREAD
    # 1.28 standard deviations hold 80 %; the median instead of the mean square, for one disturbed step is no news
    typical = sorted(abs(error) for error in errors)[len(errors) // 2] / 0.6745
    usual = min(max(_LEAST_SPREAD, 1.28 * typical), MOST_SPREAD)
    return max(
        usual, own_miss(observations, fit_costs(observations, hints, host_seconds), host_seconds)
    )
