"""What the tests of studies share: speed, and results that can be changed."""

import copy
import dataclasses

import pytest
from studies.languages import quickly, results_by_job


@pytest.fixture(scope="module", autouse=True)
def speed():
    with quickly():
        yield


@pytest.fixture
def faked(done):
    """A study's results to change, and a function that reads the answer anew."""
    study, outcome = done
    results = copy.deepcopy(results_by_job(outcome.folder))

    def answer(**settings):
        return dataclasses.replace(study, **settings).findings(results).answer

    def set_losses(job, *losses):
        for seed, loss in enumerate(losses):
            results[f"{job}, seed {seed}"]["loss"] = loss

    return results, answer, set_losses
