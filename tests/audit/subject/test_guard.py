"""A person's own Subject is called through a guard: the same facts, and errors that are its own."""

import inspect

import pytest
import torch

from attnlab.audit import Subject, audit
from attnlab.audit.errors import SubjectError
from attnlab.audit.subject.guard import guard


@pytest.mark.parametrize("method", ["draw", "run", "new_cache", "step", "packed"])
def test_what_a_subject_of_ones_own_raises_is_a_finding(method):
    class Own(Subject):
        name, caches = "own", True

        def draw(self, batch, length, seed):
            self.maybe("draw", length == 7)
            generator = torch.Generator().manual_seed(seed)
            return torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)

        def run(self, x, *, padding=None, positions=None):
            self.maybe("run", x.shape[1] == 7)
            return x.cumsum(1)

        def new_cache(self):
            self.maybe("new_cache")
            return [0]

        def step(self, x, cache):
            self.maybe("step")
            total = x.cumsum(1) + cache[0]
            cache[0] = total[:, -1:]
            return total

        def packed(self, x, lengths):
            self.maybe("packed")
            return torch.cat([part.cumsum(1) for part in x.split(lengths, 1)], 1)

        def maybe(self, name, wanted=True):
            if name == method and wanted:
                raise LookupError("no such thing")

    certificate = audit(Own(), causal=True)
    details = [one.detail for one in certificate.findings if "no such thing" in one.detail]
    assert details and all("LookupError" in one for one in details), certificate.findings
    assert certificate.verdict != "fail"


class Small(Subject):
    name, heads, layers, sides = "small", 3, 2, ("right",)

    def __init__(self):
        self.module = torch.nn.Linear(5, 5)
        self.backends = {"usual": self, "other": self}

    def draw(self, batch, length, seed):
        return torch.full((batch, length, 5), float(seed))

    def run(self, x, *, padding=None, positions=None):
        return x[:, :-1] if x.shape[1] == 7 else x

    def corrupt(self, tokens, seed):
        raise LookupError(seed)


def test_a_guard_has_the_facts_of_the_subject_and_guards_its_backends_too():
    own = Small()
    found = guard(own)
    for fact in Subject.__annotations__:
        if fact != "backends":
            assert getattr(found, fact) is getattr(own, fact), fact
    assert list(found.backends) == ["usual", "other"] and found.continuous
    assert guard(found) is found
    for one in (found, *found.backends.values()):
        with pytest.raises(SubjectError, match="outputs must be"):
            one.run(one.draw(2, 7, 0))
    with pytest.raises(SubjectError, match="raised NotImplementedError in `new_cache`"):
        found.new_cache()


def test_other_methods_are_guarded_and_keep_their_signature():
    found = guard(Small())
    assert list(inspect.signature(found.corrupt).parameters) == ["tokens", "seed"]
    with pytest.raises(SubjectError, match="raised LookupError in `corrupt`: 11"):
        found.corrupt([], 11)
    assert not hasattr(found, "packed")


def test_what_the_facts_of_a_subject_raise_is_its_own_too():
    class Broken(Small):
        @property
        def extra(self):
            raise LookupError("of theirs")

        @property
        def continuous(self):
            raise ValueError("of theirs")

        def in_dtype(self, dtype):
            raise OSError("of theirs")

    found = guard(Broken())
    for use in (
        lambda: found.extra,
        lambda: found.continuous,
        lambda: found.in_dtype(torch.float32),
    ):
        with pytest.raises(SubjectError, match="of theirs"):
            use()

    class Nameless(Small):
        @property
        def layers(self):
            raise ValueError("of theirs")

    with pytest.raises(SubjectError, match="raised ValueError in `layers`: of theirs"):
        guard(Nameless())


def test_another_precision_is_another_guard_of_the_same_module():
    own = Small()
    other = guard(own).in_dtype(torch.float32)
    assert (other.dtype, own.dtype) == (torch.float32, torch.float64)
    assert other.module is own.module
