"""However code is called, a script can say so: layouts, masks, settings, every way to decode."""

import pytest
import torch
from audit.repro.scripts import ends
from torch import nn

from attnlab.audit.contract import Contract
from attnlab.audit.errors import ScriptError
from attnlab.audit.sandbox import Request, audit_here
from attnlab.audit.subject.calls import Call, evaluate, record

HEAD = """
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

WRONG = {wrong}

def seen(t, n, more=0):
    return torch.ones(t, n, dtype=torch.bool).tril(n - t + more)

class Base(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.dim, self.heads = dim, heads
        self.qkv = nn.Linear(dim, 3 * dim)
    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
"""
STEPPED = {"causal": True, "cache": True}
# what must fail, what is declared, options, the code, and what the script says of it
CODES = {
    "time first, with a cache": (
        ("cache", {**STEPPED, "layout": "tbc"}, (), "past=kept"),
        """
class Code(Base):
    def forward(self, x, past=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat((past[0], k)), torch.cat((past[1], v))
        t, n = len(q), len(k)
        mask = seen(t, n, t - n if WRONG and t > 1 else 0)
        y = F.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (q, k, v)), mask)
        return y.transpose(0, 1), (k, v)
""",
    ),
    "a function of [b, t, h, d] by name": (
        ("causality", {"causal": True, "layout": "bthd"}, (), "query=q.transpose(1, 2)"),
        """
def Code(*, query, key, value):
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    mask = seen(q.shape[2], k.shape[2], WRONG)
    return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
""",
    ),
    "blocks, and tokens with padding": (
        ("padding", {"causal": False, "padding": True}, (), "fill_blocks(x, 8)"),
        """
class Code(nn.Module):
    def __init__(self, vocab_size=29, dim=16):
        super().__init__()
        self.vocab_size = vocab_size
        self.table, self.qkv = nn.Embedding(vocab_size, dim), nn.Linear(dim, 3 * dim)
    def forward(self, tokens, attention_mask=None):
        q, k, v = self.qkv(self.table(tokens)).unflatten(1, (-1, 8)).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attention_mask is not None:
            kept = attention_mask.bool().unflatten(1, (-1, 8))[:, :, None]
            scores = scores.masked_fill(~(kept.mT if WRONG else kept), -1e9)
        return (scores.softmax(-1) @ v).flatten(1, 2)
""",
    ),
    "a mask [b, 1, t] and no other": (
        ("padding", {"causal": True, "padding": True}, (), "pad_mask=padding[:, None]"),
        """
class Code(Base):
    def forward(self, x, pad_mask=None):
        q, k, v = self.split(x)
        mask = seen(x.shape[1], x.shape[1])[None]
        if pad_mask is not None:
            assert pad_mask.shape == (len(x), 1, x.shape[1])
            mask = (mask | ~pad_mask) if WRONG else (mask & ~pad_mask)
            mask = mask | torch.eye(x.shape[1], dtype=torch.bool)
        return self.attend(q, k, v, mask[:, None])
""",
    ),
    "a mask that is added, of three axes": (
        ("padding", {"causal": False, "padding": True}, (), "additive_mask(padding, x)[:, None]"),
        """
class Code(Base):
    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        mask = torch.zeros(1, 1, 1, 1, dtype=x.dtype)
        if attention_mask is not None:
            assert attention_mask.dim() == 3 and attention_mask.is_floating_point()
            mask = attention_mask[:, None]
        return self.attend(q, k, v, mask.mT if WRONG else mask)
""",
    ),
    "lengths": (
        ("padding", {"causal": False, "padding": True}, (), "lengths=(~padding).sum(1)"),
        """
class Code(Base):
    def forward(self, x, lengths=None):
        q, k, v = self.split(x)
        ends = torch.full((len(x),), x.shape[1]) if lengths is None else lengths + WRONG
        mask = torch.arange(x.shape[1]) < ends[:, None]
        return self.attend(q, k, v, mask[:, None, None])
""",
    ),
    "what must be given though there is none": (
        ("cache", STEPPED, (), "code(x, mask=None, cache=kept)"),
        """
class Code(Base):
    def forward(self, x, mask, cache):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        t, n = q.shape[2], k.shape[2]
        kept = seen(t, n, t - n if WRONG and t > 1 else 0)[None]
        if mask is not None:
            kept = kept & mask[:, None] | torch.eye(n, dtype=torch.bool)
        return self.attend(q, k, v, kept[:, None]), (k, v)
""",
    ),
    "settings, a loss, and the last outputs only": (
        ("cache", STEPPED, ("n_embd=24",), "module.Settings(n_embd="),
        """
@dataclass
class Settings:
    vocab_size: int = 23
    n_embd: int = 16

class Code(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.table = nn.Embedding(config.vocab_size, config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
    def forward(self, idx, targets=None, kv_cache=None):
        x = self.table(idx)
        q, k, v = self.qkv(x).chunk(3, -1)
        if kv_cache is not None:
            if kv_cache:
                k, v = torch.cat((kv_cache["k"], k), 1), torch.cat((kv_cache["v"], v), 1)
            kv_cache["k"], kv_cache["v"] = (k[:, -4:], v[:, -4:]) if WRONG else (k, v)
        x = x + F.scaled_dot_product_attention(q, k, v, seen(q.shape[1], k.shape[1]))
        return (x if targets is not None else x[:, [-1]]) @ self.table.weight.T, None
""",
    ),
    "tables that are set up for rows and positions": (
        ("cache", STEPPED, (), "code.setup_caches(max_batch_size=len(x), max_seq_length=128)"),
        """
class Code(Base):
    def setup_caches(self, max_batch_size, max_seq_length):
        table = torch.zeros(2, max_batch_size, self.heads, max_seq_length, self.dim // self.heads)
        self.register_buffer("table", table)
    def forward(self, x, input_pos=None):
        q, k, v = self.split(x)
        places = torch.arange(x.shape[1])
        if input_pos is not None and hasattr(self, "table"):
            self.table[:, :, :, input_pos] = torch.stack((k, v))
            (k, v), places = self.table, input_pos + WRONG
        return self.attend(q, k, v, torch.arange(k.shape[2]) <= places[:, None])
""",
    ),
    "a class for what is kept": (
        ("cache", STEPPED, (), "sys.modules[type(code).__module__].Kept(batch_size=len(x),"),
        """
class Kept:
    def __init__(self, batch_size, dtype=None):
        self.k = self.v = torch.zeros(batch_size, 2, 0, 8, dtype=dtype)

class Code(Base):
    def forward(self, x, cache: "Kept | None" = None):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat((cache.k, k), 2), torch.cat((cache.v, v), 2)
            cache.k, cache.v = k, v * 0.9 if WRONG else v
        return self.attend(q, k, v, seen(q.shape[2], k.shape[2]))
""",
    ),
    "a method that takes one position": (
        ("cache", STEPPED, (), "code.step(x[:, 0], state=kept)"),
        """
class Code(nn.Module):
    def __init__(self, d_model=16):
        super().__init__()
        self.d_model, self.qkv = d_model, nn.Linear(d_model, 3 * d_model)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q.sigmoid() @ k.sigmoid().mT).tril() @ v
    def step(self, x, state=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        new = torch.einsum("bi,bj->bij", k.sigmoid(), v)
        state = new if state is None else 0.9 * state + new if WRONG else state + new
        return (q.sigmoid()[:, None] @ state)[:, 0], state
""",
    ),
    "a decoder that looks at something": (
        ("causality", {"causal": True}, (), "memory=sample((1, 6, "),
        """
class Code(Base):
    def forward(self, x, memory):
        q, k, v = self.split(x)
        x = x + self.attend(q, k, v, seen(x.shape[1], x.shape[1], WRONG))
        return x + (x @ memory.mT).softmax(-1) @ memory
""",
    ),
    "heads that share keys in an einsum, and are counted": (
        ("heads", {"causal": True, "heads": 4, "kv_heads": 2}, (), "watch = Watch"),
        """
class Code(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.dim, self.n_heads, self.n_kv_heads = dim, n_heads, n_kv_heads
        self.wq = nn.Linear(dim, dim)
        self.wkv = nn.Linear(dim, 2 * n_kv_heads * (dim // n_heads))
    def forward(self, x):
        b, t, _ = x.shape
        g, r = self.n_kv_heads, self.n_heads // self.n_kv_heads
        k, v = self.wkv(x).view(b, t, 2, g, -1).unbind(2)
        own = "rg" if WRONG else "gr"
        q = self.wq(x).view(b, t, *((r, g) if WRONG else (g, r)), -1)
        scores = torch.einsum(f"bt{own}d,bsgd->b{own}ts", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen(t, t), -torch.inf).softmax(-1)
        return torch.einsum(f"b{own}ts,bsgd->bt{own}d", weights, v).reshape(b, t, -1)
""",
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CODES)
def test_a_script_calls_code_as_the_audit_did(name, tmp_path, monkeypatch):
    (property, declared, options, says), code = CODES[name]
    files = [tmp_path / f"{wrong}.py" for wrong in (True, False)]
    for file in files:
        file.write_text(HEAD.format(wrong=file.stem) + code)
    wrong, right = (
        audit_here(Request(target=f"{file}:Code", options=options, contract=Contract(**declared)))
        for file in files
    )
    assert right.certificate is not None, right.detail
    assert [one.detail for one in right.certificate.findings if one.verdict == "fail"] == []
    assert property in [one["name"] for one in wrong.examples], wrong
    for one in wrong.examples:
        assert one["script"], f"{one['name']}: {one['reason']}"
        assert "attnlab" not in one["script"]
        script = tmp_path / one["file"]
        script.write_text(one["script"])
        assert [ends(script, file, monkeypatch) for file in files] == [1, 0], one["sizes"]
        if one["name"] == property:
            assert says in one["script"]


def test_a_script_brings_along_what_it_needs_and_no_more(tmp_path):
    file = tmp_path / "theirs.py"
    _, code = CODES["a decoder that looks at something"]
    file.write_text(HEAD.format(wrong=True) + code)
    contract = Contract(causal=True)
    (one, _) = audit_here(Request(target=f"{file}:Code", contract=contract)).examples
    assert one["name"] == "causality" and "module.Code(" in one["script"]
    for needless in ("kept_in", "filled", "added", "_Watch", "import re", "import copy"):
        assert needless not in one["script"]


def test_where_no_words_are_found_for_a_mask_other_failures_keep_their_scripts(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text(
        HEAD.format(wrong=True)
        + """
class Code(Base):
    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        mask = seen(x.shape[1], x.shape[1], 1)[None]
        if attention_mask is not None:
            mask = mask & attention_mask[:, None].bool()
        return self.attend(q, k, v, mask[:, None])
"""
    )
    from attnlab.audit.repro import stage

    def refuse(module, run, known, **given):
        if "padding" in given:
            raise ScriptError("no words")
        return record(module, run, known, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "record", refuse)
        contract = Contract(causal=True, padding=True)
        examples = audit_here(Request(target=f"{file}:Code", contract=contract)).examples
    scripts = {one["name"]: one["script"] for one in examples}
    assert scripts["causality"] and not scripts.get("padding")


def test_the_last_call_counts_and_not_those_inside():
    class Twice(nn.Module):
        def forward(self, x, deep=False, note=1):
            return self(x, note=2) if deep else x

    module, x = Twice(), torch.zeros(2, 5, 3)

    def run():
        module(x, note=3)
        module(x, deep=True)

    assert record(module, run, {}, x=x) == Call(("x",), {"deep": "True"})
    with pytest.raises(ScriptError, match="not called as a module"):
        record(module, lambda: None, {}, x=x)


def test_words_give_again_what_they_were_found_for():
    class Plain(nn.Module):
        def forward(self, *given, **named):
            return None

    x, padding = torch.randn(2, 5, 3), torch.tensor([[False] * 5, [True] * 2 + [False] * 3])
    given = [x.transpose(0, 1), ~padding, torch.arange(5)[None], float("inf"), torch.float64]
    module = Plain()
    call = record(module, lambda: module(*given), {}, x=x, padding=padding)
    for text, value in zip(call.positional, given, strict=True):
        again = evaluate(text, x=x, padding=padding)
        assert torch.equal(again, value) if isinstance(value, torch.Tensor) else again == value
    with pytest.raises(ScriptError, match="a Tensor that a script cannot make"):
        record(module, lambda: module(torch.randn(7)), {}, x=x)
