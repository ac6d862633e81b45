"""Compute learning-rate schedules, as factors of `optimizer.learning_rate`."""

import math

from ncpipe.config.optimizer_specs import CosineSchedule, Schedule, StepSchedule


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """Return the factor of the learning rate at update `step` (from 0) of `steps`."""
    progress = step / steps
    if isinstance(schedule, CosineSchedule):
        fallen = max(0.0, progress - schedule.after) / (1 - schedule.after)
        return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * fallen)) / 2
    if isinstance(schedule, StepSchedule):
        try:
            return schedule.factor ** sum(progress >= milestone for milestone in schedule.milestones)
        except OverflowError:  # the run then ends as diverged
            return math.inf
    return 1.0
