"""Latent attention: its absorbed form, in which texts are decoded, against the plain one.

Axes in the formulas: token j has a latent vector cⱼ of width l, of which a head makes its key
W_k cⱼ of width n and its value W_v cⱼ; r is the width of the rotary key; Rⱼ turns what stands at j.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnlab.attention.heads import AttentionOptions, Layer
from attnlab.attention.latent import Latent, LatentAttention
from attnlab.config import setting, settings
from attnlab.kernels import Rotation, rotate, rotation
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import cached, normal, random_module

WIDTH = 24  # of the model around it
# DeepSeek-V2: 128 heads, a cache of 512 + 64 numbers a token
LARGE = Latent(
    heads=128, head_width=128, kv_rank=512, q_rank=1536, rotary_width=64, value_width=128
)
LARGE_WIDTH, BEFORE = 5120, 4096  # its width, and the keys that queries come after
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


@settings
class AbsorbedIsPlain(Claim):
    decoupled: bool = setting(True, about="positions turn a key of their own, not that of W_k")
    heads: int = setting(3, low=1, high=16, about="query heads")
    rank: int = setting(7, low=1, high=64, about="l: width of a latent vector")
    head_width: int = setting(6, low=2, high=32, about="n: width of a key without its rotary part")
    value_width: int = setting(5, low=1, high=32, about="width of a value")
    rotary_width: int = setting(4, low=2, high=16, about="r: width of the rotary key")
    tokens: int = setting(17, low=2, high=64, about="tokens of a text")
    texts: int = setting(8, low=1, high=32, about="random texts", metadata={"live": 2})

    about = About(
        statement="Latent attention has two forms that are one function, with the same gradients: "
        "keys and values made for every head, or queries moved to the latent vectors, which then "
        "are the keys and values of all heads. So a cache need only keep l + r numbers a token. If "
        "positions turned the keys that are made of latent vectors, the forms would differ.",
        formula="qᵢ · (W_k cⱼ) = (W_kᵀ qᵢ) · cⱼ\n"
        "Σ αⱼ (W_v cⱼ) = W_v Σ αⱼ cⱼ\n"
        "(Rᵢ qᵢ) · (Rⱼ W_k cⱼ) = (W_kᵀ Rᵢ₋ⱼ qᵢ) · cⱼ",
        derivation="""The first line is the associativity of a product of matrices:
            qᵀ (W_k c) = (qᵀ W_k) c. Its left side makes a key of every latent vector; its right
            side changes the query once, whatever the number of keys. The scores of the rotary part
            are added to both sides alike, and both are divided by √(n + r), the width that the
            plain form compares. So the softmax has the same arguments, and the same weights.

            The second line says that W_v is linear. Values need not be made: the latent vectors are
            summed up with the weights, and W_v is applied to the sum.

            Both forms are the same function of the same parameters, so their derivatives are the
            same too.

            A rotation between the two products spoils this, as the third line says: the query
            would have to be moved by another matrix for every distance i − j. This is why the
            rotary part is a key of its own: it is not made of the latent vector, and is kept
            beside it. A norm of the keys after W_k would spoil it too: it is a factor a key.""",
        expected="holds",
        knob=Knob("positions turn the keys that are made", {"decoupled": False}),
        remark="Which form is cheaper depends on how many queries there are: for one token after "
        "many, moving the query; for a whole text, making the keys.",
    )

    def run(self) -> Evidence:
        module = self._module()
        x = torch.from_numpy(normal(self.seed, "x", self.texts, self.tokens, WIDTH))
        options = AttentionOptions(rotary=_turned(self.tokens, self.rotary_width))
        q, held = module.queries(x, options), module.latents(x, options)
        plain = module.plain(q, held, options)
        if not self.decoupled:
            q = self._turn(q)
            plain = replace(plain, q=q, k=self._turn(plain.k))  # there are no keys to turn below
        absorbed = module.absorbed(q, held, options)
        outs = module.score.attend(plain), module.values_of(module.score.attend(absorbed))
        by = torch.from_numpy(normal(self.seed, "by", *outs[0].shape))
        parameters = [p for name, p in module.named_parameters() if not name.startswith("merge")]
        grads = [
            torch.autograd.grad((out * by).sum(), parameters, retain_graph=True) for out in outs
        ]
        flat = [torch.cat([one.flatten() for one in of_form]) for of_form in grads]
        weights = [module.score.weights(one) for one in (plain, absorbed)]
        kept = held.k.numel() // (self.texts * self.tokens)
        return Evidence(
            kind="construction",
            trials=self.texts * self.tokens * self.heads,
            measures=[
                Measure("difference of weights, of the largest", _apart(*weights), "≤", EQUAL),
                Measure("difference of outputs, of the largest", _apart(*outs), "≤", EQUAL),
                Measure("of gradients, of the largest", _apart(*flat), "≤", EQUAL),
                Measure("numbers kept of a token", kept, "=", self.rank + self.rotary_width),
            ],
            picture=_picture(),
            details=[_table()],
        )

    def _module(self) -> LatentAttention:
        chosen = Latent(
            heads=self.heads,
            head_width=self.head_width,
            kv_rank=self.rank,
            rotary_width=self.rotary_width,
            value_width=self.value_width,
        )
        made = random_module(lambda: chosen.build(Layer(width=WIDTH)), self.seed, "latent")
        return made.requires_grad_()

    def _turn(self, vectors: Tensor) -> Tensor:
        """What is compared with the rotary part turned already: the rest of it, too."""
        width = self.head_width - self.head_width % 2
        turned = rotate(vectors[..., :width], _turned(self.tokens, width))
        return torch.cat((turned, vectors[..., width:]), dim=-1)


def _picture() -> Plot:
    costs = _costs()
    names = "plain: keys and values are made", "absorbed: queries are moved"
    return Plot(
        title=f"Queries after {BEFORE:,} keys, at the sizes of DeepSeek-V2",
        x="queries",
        y="multiplications of a head",
        log_x=True,
        log_y=True,
        series=[
            Series(name=name, x=list(map(float, QUERIES)), y=[cost[form] for cost in costs])
            for form, name in enumerate(names)
        ],
    )


def _table() -> Table:
    return Table(
        title="The same, and which form decoding takes",
        columns=["queries", "plain", "absorbed", "taken"],
        rows=[
            [queries, plain, absorbed, "absorbed" if absorbed < plain else "plain"]
            for queries, (plain, absorbed) in zip(QUERIES, _costs(), strict=True)
        ],
        note="Multiplications of products with W_k and W_v, of scores, and of sums of values.",
    )


@cached
def _costs() -> list[tuple[float, float]]:
    with torch.device("meta"):
        module = LARGE.build(Layer(width=LARGE_WIDTH))
    return [module.costs(queries, BEFORE) for queries in QUERIES]


def _turned(tokens: int, width: int) -> Rotation:
    return rotation(torch.arange(tokens)[None], width // 2, dtype=torch.float64)


def _apart(found: Tensor, want: Tensor) -> float:
    return float((found - want).detach().abs().max() / want.detach().abs().max())
