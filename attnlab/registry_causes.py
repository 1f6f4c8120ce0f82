"""Rows of the registry: causes for which two models differ, in the order in which they are applied.

As in `registry.py`: the name, the class in this package, and a summary.
"""

# fmt: off
CAUSES = {
    "rotary-start": ("doctor.causes.rotary:RotaryStart", "which part of a head turns"),
    "rotary-layout": ("doctor.causes.rotary:RotaryLayout",
        "coordinates turn in halves, or as neighbours"),
    "rotary-direction": ("doctor.causes.rotary:RotaryDirection", "which way pairs turn"),
    "rotary-fraction": ("doctor.causes.rotary:RotaryFraction", "how much of a head turns"),
    "rotary-base": ("doctor.causes.rotary:RotaryBase", "the base of the rates"),
    "rotary-scaling": ("doctor.causes.rotary:RotaryScaling",
        "rates that are not those of a base"),
    "position-offset": ("doctor.causes.rotary:PositionOffset", "positions begin elsewhere"),
    "fused-order": ("doctor.causes.weights:FusedOrder",
        "fused q, k and v: by kind, or by group of heads"),
    "head-sharing": ("doctor.causes.weights:HeadSharing",
        "neighbours share a key/value head, or heads are tiled"),
    "transposed": ("doctor.causes.weights:Transposed", "square matrices the other way round"),
    "gate-order": ("doctor.causes.weights:GateOrder", "which half is the gate"),
    "norm-one-plus": ("doctor.causes.weights:NormOnePlus", "norms multiply by 1 + weight"),
    "tied-head": ("doctor.causes.weights:TiedHead", "the head is the embeddings, or not"),
    "score-scale": ("doctor.causes.weights:ScoreScale", "the factor on query · key"),
    "embedding-scale": ("doctor.causes.weights:EmbeddingScale",
        "embeddings are multiplied, such as by √width"),
    "window": ("doctor.causes.conventions:Window", "how many keys a query attends to"),
    "norm-epsilon": ("doctor.causes.conventions:NormEpsilon", "what norms add"),
    "norm-place": ("doctor.causes.norms:NormPlace",
        "norms before attention, after the sum, or on what it gives"),
    "qk-norm-place": ("doctor.causes.norms:QkNormPlace",
        "queries and keys are normalised before the rotation, or after"),
    "gelu": ("doctor.causes.conventions:Gelu", "exact, or by tanh"),
    "soft-cap": ("doctor.causes.conventions:SoftCap", "scores or logits are capped"),
    "padding-mask": ("doctor.causes.conventions:PaddingMask",
        "the padding mask is read upside down"),
    "training-mode": ("doctor.causes.conventions:TrainingMode",
        "dropout drops in evaluation mode"),
}
# fmt: on
