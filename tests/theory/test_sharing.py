"""Shared heads: who reads what, the copies' gradients, and savings counted by hand."""

import math

import pytest
import torch

from attnlab.attention.heads import MultiHead
from attnlab.kernels import attention
from attnlab.theory import sharing
from attnlab.theory.draw import normal
from attnlab.theory.sharing import GqaIsTiedMha, GqaSavesTheCache


def tensor(purpose, *shape):
    return torch.from_numpy(normal(0, purpose, *shape))


def test_repeat_and_tile_are_told_apart_by_hand():
    assert sharing.reads(6, 2, "repeat").tolist() == [0, 0, 0, 1, 1, 1]
    assert sharing.reads(6, 2, "tile").tolist() == [0, 1, 0, 1, 0, 1]
    assert sharing.divisors(12) == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize("heads", [1, 4, 9])
def test_any_number_of_heads_holds(heads):
    assert GqaIsTiedMha(heads=heads).run().verdict == "holds"


@pytest.mark.parametrize(("heads", "verdict"), [(5, "holds"), (4, "refuted")])
def test_the_order_matters_only_between_one_head_and_all(heads, verdict):
    assert GqaIsTiedMha(heads=heads, order="tile").run().verdict == verdict


def test_a_copied_head_is_a_copy():
    settings = sharing.Grouped(heads=4, kv_heads=2, head_width=5)
    grouped = sharing.module(0, settings)
    _, k, v = sharing.parts(grouped, grouped.project.weight)
    _, many_k, many_v = sharing.tie(grouped, "repeat").project.weight.unflatten(0, (3, 4, 5))
    for n in range(4):
        assert torch.equal(many_k[n], k[n // 2])
        assert torch.equal(many_v[n], v[n // 2])


def test_copies_of_another_matrix_are_refuted(monkeypatch):
    tie = sharing.tie

    def slightly_off(grouped, order):
        made = tie(grouped, order)
        with torch.no_grad():
            made.project.weight[-1, 0] += 1e-6  # one number of the last value head
        return made

    monkeypatch.setattr(sharing, "tie", slightly_off)
    assert GqaIsTiedMha().run().verdict == "refuted"


def test_the_gradient_of_one_copy_is_not_that_of_the_shared_head(monkeypatch):
    untie = sharing.untie

    def averaged(gradient, grouped, order):
        added = untie(gradient, grouped, order)
        rows = grouped.heads * grouped.head_width
        return torch.cat((added[:rows], added[rows:] * grouped.kv_heads / grouped.heads))

    monkeypatch.setattr(sharing, "untie", averaged)
    evidence = GqaIsTiedMha().run()
    assert [measure.met for measure in evidence.measures] == [True, False, True, True]


def test_a_kernel_that_tiles_is_refuted(monkeypatch):
    def tiling(q, k, v, **seeing):
        to = sharing.reads(q.shape[1], k.shape[1], "tile")
        return attention(q, k[:, to], v[:, to], **seeing)

    monkeypatch.setattr(sharing, "attention", tiling)
    evidence = GqaIsTiedMha().run()
    assert not evidence.measures[2].met


def test_bytes_parameters_and_maps_are_those_counted_by_hand():
    layer = GqaSavesTheCache(heads=6, kv_heads=3, length=17)._layer(3)
    # keys and values · batch · heads · positions · head width · bytes of a float64
    assert layer.full == 2 * 2 * 3 * 17 * 5 * 8
    assert layer.ring == 2 * 2 * 3 * 10 * 5 * 8
    assert layer.parameters == 2 * 11 * 3 * 5
    assert (layer.maps, layer.different) == (6, 6)
    assert layer.multiply_adds == 2 * 2 * 6 * 17 * 17 * 5


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 1), (6, 3), (16, 16)])
def test_any_number_of_shared_heads_saves_the_cache(heads, kv_heads):
    assert GqaSavesTheCache(heads=heads, kv_heads=kv_heads, length=23).run().verdict == "holds"


def test_a_cache_of_all_heads_is_refuted(monkeypatch):
    def wasteful(heads, kv_heads, head_width):
        return MultiHead(heads=heads, head_width=head_width)

    monkeypatch.setattr(sharing, "Grouped", wasteful)
    assert GqaSavesTheCache().run().verdict == "refuted"


def test_summed_scores_are_multi_head_attention_with_added_queries():
    q, k, v = tensor("q", 2, 6, 17, 5), tensor("k", 2, 3, 17, 5), tensor("v", 2, 3, 17, 5)
    out, maps = sharing.summed_scores(q, k, v)
    added = torch.stack([q[:, 2 * g] + q[:, 2 * g + 1] for g in range(3)], dim=1)
    assert (out - attention(added, k, v, path="reference")).abs().max() <= 1e-12
    assert maps.shape == (2, 3, 17, 17)


def test_two_equal_query_heads_with_summed_scores_attend_with_twice_the_score():
    k, v = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    q = torch.full((1, 2, 2, 1), math.log(3))
    out, _ = sharing.summed_scores(q, k, v)
    assert float(out[0, 0, 1, 0]) == pytest.approx(9 / 10)  # e^(2 log 3) = 9 to 1
    assert float(attention(q, k, v)[0, 0, 1, 0]) == pytest.approx(3 / 4)  # 3 to 1


def test_equal_maps_count_once():
    one, other = torch.eye(3).double(), torch.ones(3, 3).double()
    assert sharing._different(torch.stack([one, other, one, other, other])) == 2


def test_settings_that_make_no_sense_are_refused(unchecked_shapes):
    with pytest.raises(
        ValueError, match=r"kv_heads is 4; .* query heads, so use one of \[1, 2, 3, 6\]"
    ):
        GqaSavesTheCache(heads=6, kv_heads=4)
    with pytest.raises(ValueError, match="mechanism is 'sum'; did you mean 'summed'"):
        GqaSavesTheCache(mechanism="sum")
    with pytest.raises(ValueError, match="order is 'mod'; choose from repeat, tile"):
        GqaIsTiedMha(order="mod")
