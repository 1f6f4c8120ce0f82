"""Randomness as a function: the same arguments, the same numbers, on any machine."""

import hashlib

import numpy as np
import pytest

from attnlab import counter_rng


def plain_bits(seed, purpose, *counters):
    """The definition in whole numbers of Python, one element at a time."""
    word = 2**64 - 1

    def mixed(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & word
        x = (x ^ x >> 27) * 0x94D049BB133111EB & word
        return x ^ x >> 31

    state = int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "little")
    for counter in counters:
        state = mixed(state ^ mixed((counter + 1) * 0x9E3779B97F4A7C15 & word))
    return state


@pytest.mark.parametrize("given", [(0, "weights"), (7, "order", 3, 1), (-2, "b", -1, 2**62)])
def test_bits_are_those_of_the_definition(given):
    """A change here would change every seeded run there is."""
    assert int(counter_rng.bits(*given)) == plain_bits(*given)
    assert counter_rng.number(*given) == plain_bits(*given) >> 1


def test_an_element_does_not_depend_on_its_neighbours():
    rows = counter_rng.bits(3, "a", np.arange(5)[:, None], np.arange(7))
    assert rows.shape == (5, 7)
    for row in range(5):
        for column in range(7):
            assert rows[row, column] == counter_rng.bits(3, "a", row, column)


@pytest.mark.parametrize("other", [(4, "a", 1, 2), (3, "b", 1, 2), (3, "a", 2, 1), (3, "a", 1)])
def test_seed_purpose_counters_and_their_order_all_matter(other):
    assert counter_rng.number(3, "a", 1, 2) != counter_rng.number(*other)


def test_uniform_numbers_fill_the_unit_interval_evenly():
    """Of 40,000 in 20 bins each has 2,000 ± 44 (one standard deviation); five of those are 220."""
    numbers = counter_rng.uniform(1, "evenly", np.arange(40_000))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert np.abs(counts - 2_000).max() < 220


def test_neighbouring_counters_are_not_related():
    """The correlation of 40,000 independent pairs is 0 ± 0.005."""
    numbers = counter_rng.uniform(1, "apart", np.arange(40_001))
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.025


@pytest.mark.parametrize("count", [0, 1, 2, 257])
def test_a_permutation_holds_every_number_once(count):
    assert sorted(counter_rng.permutation(count, 5, "order", 2)) == list(range(count))


def test_permutations_of_different_epochs_differ():
    first, second = (counter_rng.permutation(50, 5, "order", epoch) for epoch in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("seed", [-1, 10**30])
def test_any_whole_number_is_a_seed(seed):
    assert 0 <= counter_rng.number(seed, "any") < 2**63


@pytest.mark.parametrize("count", [*range(1, 40), 255, 256, 257, 1023, 4096, 4097, 50_000])
def test_shuffled_is_a_permutation(count):
    found = counter_rng.shuffled(np.arange(count), count, 3, "order", 1)
    assert (np.sort(found) == np.arange(count)).all()


def test_what_stands_at_a_place_depends_on_no_other_place():
    every = counter_rng.shuffled(np.arange(1000), 1000, 3, "order", 1)
    some = np.array([999, 3, 3, 500])
    assert counter_rng.shuffled(some, 1000, 3, "order", 1).tolist() == every[some].tolist()
    for other in [(4, "order", 1), (3, "other", 1), (3, "order", 2)]:
        assert (counter_rng.shuffled(np.arange(1000), 1000, *other) != every).mean() > 0.9


def test_places_of_a_count_that_no_memory_holds():
    count = 10**15 + 7
    places = np.arange(0, count, count // 5000)
    found = counter_rng.shuffled(places, count, 0, "order")
    assert len(set(found.tolist())) == len(places) and found.min() >= 0 and found.max() < count
    assert abs(found.mean() / count - 0.5) < 4 / np.sqrt(12 * len(places))
    assert not len(counter_rng.shuffled(places[:0], count, 0, "order"))


def test_every_sample_is_as_likely_at_every_place():
    """χ² of where each of 8 goes, over 1,000 orders: 49 degrees of freedom, below 1 in 10,000."""
    counts = np.zeros((8, 8))
    for epoch in range(1000):
        counts[np.arange(8), counter_rng.shuffled(np.arange(8), 8, 5, "order", epoch)] += 1
    assert ((counts - 125) ** 2 / 125).sum() < 95


def test_neighbours_in_an_order_are_not_neighbours_in_the_text():
    found = counter_rng.shuffled(np.arange(10_000), 10_000, 1, "order")
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.04
    assert (np.abs(np.diff(found)) == 1).sum() < 12
