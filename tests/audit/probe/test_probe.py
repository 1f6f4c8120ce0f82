"""The probe: many texts to a call where rows are kept apart, and within what the code takes."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.examine import examine
from attnlab.audit.probe.probe import NUMBERS, POSITIONS, Probe
from attnlab.audit.properties.heads import Heads
from attnlab.audit.subject.adapters import subject_for


def probe_of(code, **declared):
    return Probe(subject_for(code, {}, "code"), Contract(**declared))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_as_many_texts_fit_into_a_call_as_little_memory_holds():
    probe = probe_of(causal)
    assert probe.rows(7) == probe.room(7) == POSITIONS // 7
    assert probe.room(129) == POSITIONS // 129

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(29, 4), nn.Linear(4, 2**16)

        def forward(self, input_ids):
            return self.head(self.embedding(input_ids))

    assert probe_of(Wide()).room(64) == NUMBERS // 2**22


def test_rows_run_alone_where_code_mixes_them_or_takes_few():
    def few(q, k, v):
        assert len(q) <= 3
        return causal(q, k, v)

    for code in (few, lambda q, k, v: causal(q, k, v).cumsum(0)):
        probe = probe_of(code)
        assert probe.rows(7) == 1
        seen = probe.influence(7) > probe.tolerance
        assert torch.equal(seen, torch.ones(7, 7, dtype=torch.bool).tril())


class Short(nn.Module):
    """Causal, up to a length that it names; a switch of its own for padding."""

    def __init__(self, block_size):
        super().__init__()
        self.width, self.block_size, self.project = 16, block_size, nn.Linear(16, 48)

    def forward(self, x, key_padding_mask=None):
        t = x.shape[1]
        if t > self.block_size:
            raise IndexError(f"{t} is beyond the table")
        q, k, v = self.project(x).chunk(3, -1)
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        if key_padding_mask is not None:
            seen = (seen & ~key_padding_mask[:, None]) | torch.eye(t, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def test_every_property_stays_within_what_the_code_takes():
    for block_size in (7, 9, 16):
        certificate = audit(Short(block_size), causal=True, padding=True, positions="none")
        assert certificate.verdict == "pass", certificate.reason
        told = [one.detail for one in certificate.findings if "IndexError" in one.detail]
        assert any(f"at length {block_size + 1}" in one for one in told)
        assert not any(one.verdict == "cannot tell" for one in certificate.findings)
        assert len(certificate.influence) == min(block_size, 23)


def test_code_that_takes_nothing_is_not_told_about():
    class Never(Short):
        def forward(self, x, key_padding_mask=None):
            if self.broken:
                raise IndexError("always")
            return super().forward(x)

    module = Never(64)
    module.broken = False
    subject = subject_for(module, {}, "code")
    subject.module.broken = True
    certificate = examine(subject, Contract(causal=True))
    assert certificate.verdict == "incomplete" and "causal=true" in certificate.reason
    verdicts = {one.name: one.verdict for one in certificate.findings}
    assert "pass" not in verdicts.values() and verdicts["causality"] == "cannot tell"


def test_what_many_rows_show_is_looked_at_again_with_each_alone():
    """From eight rows on it lets who sees whom depend on the length: no such rows, no failure."""

    def attend(q, k, v):
        t = q.shape[2]
        ahead = int(len(q) == 7 and t == 6)  # six changed texts, and the unchanged one
        seen = torch.ones(t, t, dtype=torch.bool).tril(ahead)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.width, self.project = 16, nn.Linear(16, 48)

        def forward(self, x):
            parts = (one.unflatten(-1, (2, 8)) for one in self.project(x).chunk(3, -1))
            return attend(*(one.transpose(1, 2) for one in parts)).transpose(1, 2).flatten(2)

    assert Heads().examine(probe_of(Attend())).verdict == "pass"


def test_a_probe_that_never_asks_for_lengths_does_not_look_for_their_names(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "attnlab.audit.probe.probe.named_lengths", lambda module: asked.append(module) or []
    )
    probe = Probe(subject_for(nn.Linear(5, 5), {}, "linear"), Contract())
    probe.run(probe.draw(2, 7))
    assert not asked and probe.lengths and len(asked) == 1
