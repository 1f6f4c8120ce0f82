"""Caches: the outputs in pieces are those of the whole text, or the step that differs is named."""

import pytest
import torch
import torch.nn.functional as F

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.bugs.fused import Fused
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.cache import Cache, chunkings, fails
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject, normal
from attnlab.models.transformer import Transformer, TransformerSettings


def model(*words):
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=64)
    return config.override(settings, list(words)).build()


def found(code, **declared):
    return Cache().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


@pytest.mark.parametrize("words", [(), ("window=4",), ("positions=learned",), ("positions=alibi",)])
def test_our_caches_pass(words):
    finding = found(model(*words), window=4 if "window=4" in words else None)
    assert finding.verdict == "pass" and finding.measured < 1e-13


def test_a_cache_that_forgets_where_it_was_is_found_at_its_second_step():
    class Forgetful(Transformer):
        def forward(self, tokens, cache=None, **rest):
            found = super().forward(tokens, cache=cache, **rest)
            if cache is not None:
                cache.length = 0  # positions begin anew with every piece
            return found

    finding = found(Forgetful(model().settings))
    assert finding.verdict == "fail" and "at position 1 " in finding.detail


def test_a_state_that_stays_is_found_with_the_second_text():
    code = model()
    kept = code.new_cache()
    make = code.new_cache
    code.new_cache = lambda: kept if kept.length == 0 else _leftover(make(), kept)
    assert found(code).verdict == "fail"


def _leftover(new, old):
    new.layers[0] = old.layers[0]
    return new


def test_code_without_a_cache_has_none_to_test():
    code = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    assert found(code).verdict == "not applicable"
    assert found(code, cache=True).verdict == "cannot tell"


def test_pieces_add_up_and_reach_beyond_the_window():
    every = list(chunkings(17, 4))
    assert all(sum(sizes) == 17 and min(sizes) > 0 for sizes in every)
    assert [1] * 17 in every and any(sizes[0] > 4 and sizes[1] == 1 for sizes in every)


def test_chunks_that_differ_from_single_steps_are_told_beside_a_window_that_only_steps_have():
    class Windowed(Fused):
        """Whole texts see everything, steps see 5 keys; chunks too many of them, if `wrong`."""

        def new_cache(self):
            return {}

        def forward(self, x, cache=None):
            q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            window = 99
            if cache is not None:
                window = 7 if self.wrong and cache and x.shape[1] > 1 else 5
                if cache:
                    k, v = torch.cat((cache["k"], k), 2), torch.cat((cache["v"], v), 2)
                cache["k"], cache["v"] = k, v
            back = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]
            back = back - torch.arange(k.shape[2])
            seen = (back >= 0) & (back < window)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            return self.outer(y.transpose(1, 2).flatten(2))

    for wrong in (False, True):
        torch.manual_seed(0)
        finding = found(Windowed(16, 2, wrong))
        assert finding.verdict == "fail" and finding.aspect == "single steps"
        others = [one.aspect for one in finding.besides]
        assert others == (["chunks against single steps"] if wrong else [])


class Tiring(Subject):
    """Right for so many steps, and then never again."""

    name, caches = "tiring", True

    def __init__(self, right):
        self.left = right

    def draw(self, batch, length, seed):
        return normal(seed, batch, length, 4)

    def run(self, x, *, padding=None, positions=None):
        return x.cumsum(1)

    def new_cache(self):
        return {"sum": 0}

    def step(self, x, cache):
        self.left -= 1
        out = cache["sum"] + x.cumsum(1)
        cache["sum"] = out[:, -1:]
        return out + (self.left < 0)


def test_a_case_that_passed_is_run_again_when_it_is_asked_again():
    examined, probe = Cache(), Probe(Tiring(40), Contract())
    case = examined.case(probe, fails, batch=2, pieces=[1] * 11, warm=True)  # 22 steps
    assert [examined.run(probe, case)[0] for _ in range(2)] == [False, True]


def test_what_only_names_a_failure_is_run_once():
    subject = Tiring(0)
    examined, probe = Cache(), Probe(subject, Contract())
    case = examined.case(probe, fails, batch=2, pieces=[1] * 11, warm=False)
    assert [examined._fails(probe, case) for _ in range(3)] == [True] * 3
    assert subject.left == -1
