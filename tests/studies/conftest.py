"""What the tests of studies share: speed, and results that can be changed."""

import copy
import dataclasses

import pytest
from experiments.small import quickly, results_by_job

SEEDS = 4


@pytest.fixture(scope="module", autouse=True)
def speed():
    with quickly():
        yield


def around(name, loss, spread):
    """Of every seed; their mean is the loss, and what a seed does to all is more than its noise."""
    noise = (-1.5, 0.5, -0.5, 1.5)
    return [
        loss + 0.1 * (seed - 1.5) + spread * noise[(seed + len(name)) % SEEDS]
        for seed in range(SEEDS)
    ]


@pytest.fixture
def faked(done):
    """A study's results, made to be of four seeds; a function that reads the answer anew, and one
    that puts the losses of a training around a number."""
    study, record = done
    results = copy.deepcopy(results_by_job(record.folder))
    for name in [name for name in results if name.endswith(", seed 0")]:
        for seed in range(SEEDS):
            results.setdefault(f"{name[:-1]}{seed}", copy.deepcopy(results[name]))

    def findings(**settings):
        return dataclasses.replace(study, **{"seeds": SEEDS, **settings}).findings(results)

    def set_losses(job, loss, spread=0.001, key="loss"):
        for seed, value in enumerate(around(job, loss, spread)):
            results[f"{job}, seed {seed}"][key] = value

    return results, findings, set_losses
