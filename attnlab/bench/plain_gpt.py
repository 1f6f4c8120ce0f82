"""A plain GPT in nothing but PyTorch's own layers, and the step that is usual for it: the peer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.data.batches import Batch
from attnlab.kernels import hardware
from attnlab.training.optim import Schedule


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Sizes of a plain GPT and of its training."""

    width: int
    depth: int
    heads: int
    context: int
    batch: int
    steps: int
    rate: float
    dropout: float


class PlainTraining:
    """AdamW, cosine schedule, clipping; on CUDA bfloat16 autocast."""

    def __init__(
        self, peer: Peer, vocabulary: int, device: torch.device, *, compiled: bool = False
    ) -> None:
        self.peer, self.device = peer, device
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = PlainGpt(peer, vocabulary).to(device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=peer.rate, betas=(0.9, 0.99), weight_decay=0.1, fused=True
        )
        self.schedule = Schedule(warmup=100, final=0.1)
        self._loss = self._plain_loss
        if compiled:
            hardware.tag_compiled_code()
            self._loss = torch.compile(self._plain_loss, dynamic=False)

    def step(self, number: int, batch: Batch) -> Tensor:
        """The loss before the update."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.peer.rate * self.schedule.factor(number, self.peer.steps)
        loss = self._loss(batch.tokens.to(self.device), batch.targets.to(self.device))
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return loss.detach()

    def _plain_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            logits = self.model(tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class PlainGpt(nn.Module):
    def __init__(self, peer: Peer, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, peer.width)
        self.positions = nn.Embedding(peer.context, peer.width)
        layer = nn.TransformerEncoderLayer(
            peer.width,
            peer.heads,
            4 * peer.width,
            dropout=peer.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            bias=False,
        )
        self.layers = nn.TransformerEncoder(layer, peer.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(peer.width, bias=False)
        self.head = nn.Linear(peer.width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))
