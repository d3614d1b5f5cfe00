"""At which steps a run saves and measures benchmarks."""

from onecard.train.run.progress import save_due, tasks_due


def test_when_a_checkpoint_is_due(config):
    every = config.replace(checkpoint_interval=4)
    assert [step for step in range(1, 13) if save_due(every, step, improved=False)] == [4, 8, 12]
    best = config.replace(eval_interval=5, always_save_checkpoint=False, checkpoint_interval=None)
    assert [step for step in range(1, 13) if save_due(best, step, improved=step > 5)] == [10]


def test_benchmarks_are_due_at_their_interval_and_at_the_end(config):
    often = config.replace(eval_tasks_interval=4)
    assert [step for step in range(1, 11) if tasks_due(often, step, last=step == 10)] == [4, 8, 10]
    assert [step for step in range(1, 11) if tasks_due(config, step, last=step == 10)] == [10]
