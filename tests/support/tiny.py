"""Layers so small that every job on them takes no time, and contenders to try."""

import math

import numpy as np

from benchmarks.cases import FIGURE, POINTWISE, RESNET, Case, Suite

SQUARE = Case(FIGURE, 3, 3, 3, 4)
STRIDED = Case(RESNET, 2, 3, 3, 6, 2)
POINT = Case(POINTWISE, 3, 2, 1, 4)
POINT_STRIDED = Case(POINTWISE, 2, 3, 1, 4, 2)
TINY = (SQUARE, STRIDED, POINT, POINT_STRIDED)
SUITE = Suite("tiny", TINY, (), 2, 0.0, math.inf, 1, math.inf)


def counted(runs, answer):
    """A job that counts how often it runs, and answers this."""

    def job(weight, task):
        runs.append(task.case)
        return answer(task)

    return job


def wrong_values(task):
    return np.ones(task.case.out_channels * task.case.frequencies)
