"""Every option of the laboratory by kind and name, found without importing it.

A line here names the settings class of an option; the class is imported when it is used, so that
listing and `--help` need no torch. Adding an option is one class and one line here.

Another package adds options without a line here: it has an entry point in the group
"attnlab.options" that names a list of `Option`. On a clash of names ours is used.
"""

import difflib
import functools
import importlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

GROUP = "attnlab.options"  # of entry points


@dataclass(frozen=True)
class Option:
    kind: str
    name: str
    target: str  # "package.module:Class"
    summary: str
    origin: str = "attnlab"  # the package that it comes from


@dataclass(frozen=True)
class Kind:
    about: str  # what its options are
    example: str  # how one is chosen


class OptionWarning(UserWarning):
    """Options of another package that cannot be used."""


KINDS = {
    "attention": Kind("how query heads share key/value heads", "model.attention=grouped"),
    "score": Kind("how a key is compared with a query", "model.score=additive"),
    "cache": Kind("KV caches: what decoding keeps of a text", 'model.new_cache("ring")'),
    "positions": Kind("how a model knows the order of tokens", "model.positions=alibi"),
    "model": Kind("language models", "model=elman"),
    "corpus": Kind("texts to train on", "corpus=biographies"),
    "tokenizer": Kind("how text becomes tokens", "tokenizer=bpe"),
    "objective": Kind("what a model learns to predict", "objective=span-corruption"),
    "optimiser": Kind("how gradients change the weights", "optimiser=muon"),
    "preset": Kind("recipes to train by", "attnlab train tiny"),
    "study": Kind("whole experiments, from the text to a report", "attnlab study window"),
    "claim": Kind("statements of the theory, each with its experiment", "attnlab claims copy"),
    "property": Kind("what an audit measures of attention code", "attnlab audit file.py:Name"),
    "check": Kind("promises of the laboratory, put to the test", "attnlab check kill"),
    "bench": Kind("speed and memory against peers", "attnlab bench window"),
}

_TABLE = {
    ("attention", "attnlab.attention.heads"): {
        "multi-head": ("MultiHead", "a key/value head for every query head"),
        "grouped": ("Grouped", "query heads share kv_heads key/value heads in groups"),
        "multi-query": ("MultiQuery", "all query heads share one key/value head"),
    },
    ("score", "attnlab.attention.scores"): {
        "scaled-dot": ("ScaledDot", "k·q / √d"),
        "multiplicative": ("Multiplicative", "kᵀ W q / √d"),
        "concatenated": ("Concatenated", "wᵀ [k; q]"),
        "additive": ("Additive", "wᵀ tanh(W [k; q]), computed in chunks"),
    },
    ("cache", "attnlab.attention.cache"): {
        "full": ("Full", "keeps every key and value; grows with the text"),
        "ring": ("Ring", "keeps the keys that a window still reaches; constant memory"),
    },
    ("positions", "attnlab.attention.positions"): {
        "none": ("NoPositions", "no position information"),
        "learned": ("Learned", "a trained vector for each position, added to the tokens"),
        "sinusoidal": ("Sinusoidal", "sines and cosines of the position, added to the tokens"),
        "rotary": ("Rotary", "rotates q and k; layout=half-split or interleaved, base, fraction"),
        "alibi": ("Alibi", "scores fall with distance, each head at its own slope"),
    },
    ("positions", "attnlab.attention.mistakes"): {
        "rotary-growing": ("GrowingRotary", "a mistake, as a control: frequencies grow, not fall"),
        "rotary-by-head": ("HeadRotary", "a mistake, as a control: turns by head, not by position"),
    },
    ("model", "attnlab.models.transformer"): {
        "transformer": ("TransformerSettings", "the transformer language model"),
    },
    ("model", "attnlab.models.recurrent"): {
        "elman": ("ElmanSettings", "Elman recurrent language model"),
        "birnn": ("BidirectionalSettings", "bidirectional RNN: reads ahead, no language model"),
        "prefix-birnn": ("PrefixBidirectionalSettings", "bidirectional RNN of each prefix, O(t²)"),
    },
    ("corpus", "attnlab.data.corpora"): {
        "python-docs": ("PythonDocs", "English about Python, from the standard library"),
        "text": ("TextFiles", "a text file or a folder of them; path"),
    },
    ("corpus", "attnlab.data.birthplaces"): {
        "birthplaces": ("Birthplaces", "a sentence a person, and where they were born; path"),
    },
    ("corpus", "attnlab.data.biographies"): {
        "biographies": ("Biographies", "invented people, with questions about them"),
    },
    ("tokenizer", "attnlab.data.tokens"): {
        "characters": ("Characters", "a token for each character of the text"),
        "bytes": ("Bytes", "a token for each byte of UTF-8"),
    },
    ("tokenizer", "attnlab.data.bpe"): {
        "bpe": ("Bpe", "byte-level pairs, learned from the text; vocabulary"),
    },
    ("objective", "attnlab.data.objectives"): {
        "causal": ("Causal", "the next token"),
        "span-corruption": ("SpanCorruption", "a span that was taken out"),
        "questions": ("Questions", "the answer to a question, and only that"),
    },
    ("objective", "attnlab.data.mixed"): {
        "mixed": ("Mixed", "spans, recall and questions side by side; questions, recall, part"),
    },
    ("optimiser", "attnlab.training.optim"): {
        "adamw": ("AdamW", "AdamW for every parameter"),
        "muon": ("Muon", "orthogonalised momentum for matrices, AdamW for the rest"),
    },
    ("preset", "attnlab.presets"): {
        "tiny": ("tiny", "English about Python, a minute on two cores"),
        "shakespeare-cpu": ("shakespeare_cpu", "character Shakespeare on two cores; data=PATH"),
        "shakespeare-gpu": ("shakespeare_gpu", "character Shakespeare on one GPU; data=PATH"),
        "birthplaces-pretrain": (
            "birthplaces_pretrain",
            "pretrain by span corruption; data=FOLDER",
        ),
        "birthplaces-pretrain-learned": (
            "birthplaces_pretrain_learned",
            "… with learned positions",
        ),
        "birthplaces-finetune": ("birthplaces_finetune", "finetune on questions; start=RUN"),
        "birthplaces-finetune-learned": (
            "birthplaces_finetune_learned",
            "… with learned positions",
        ),
        "birthplaces-none": ("birthplaces_none", "questions without pretraining"),
        "birthplaces-best": ("birthplaces_best", "our best recipe, in one go, for a GPU"),
        "rope-gqa-absolute": ("rope_gqa_absolute", "learned positions, six heads; data=PATH"),
        "rope-gqa-rotary": ("rope_gqa_rotary", "rotary positions, six heads"),
        "rope-gqa-grouped": ("rope_gqa_grouped", "learned positions, two key/value heads"),
        "rope-gqa-both": ("rope_gqa_both", "rotary positions, two key/value heads"),
        "elman": ("elman", "a recurrent language model of English about Python"),
    },
    ("study", "attnlab.studies.birthplaces.experiment"): {
        "birthplaces": (
            "BirthplacesStudy",
            "does pretraining carry facts? data=FOLDER or invented",
        ),
    },
    ("study", "attnlab.studies.rope_gqa.experiment"): {
        "rope-gqa": ("RopeGqaStudy", "rotary positions and shared key/value heads; data=FILE"),
    },
    ("study", "attnlab.studies.recurrent.experiment"): {
        "recurrent": ("RecurrentStudy", "Elman, bidirectional RNN and transformer; data=FILE"),
    },
    ("study", "attnlab.studies.window.experiment"): {
        "window": ("WindowStudy", "sliding windows against full attention; data=FILE"),
    },
    ("claim", "attnlab.theory.distribution"): {
        "weights-are-a-distribution": (
            "WeightsAreADistribution",
            "softmax weights add up to 1 and follow the scores",
        ),
    },
    ("claim", "attnlab.theory.lookup"): {
        "copy": ("Copy", "a leading score copies its value"),
        "average-of-two": ("AverageOfTwo", "β(k_a + k_b) averages two values"),
        "recover-a-part": ("RecoverAPart", "a sum of two subspaces can be taken apart"),
    },
    ("claim", "attnlab.theory.opposite"): {
        "opposite-of-the-other-keys": (
            "OppositeOfTheOtherKeys",
            "subtracting the other keys doubles the lead and no more",
        ),
    },
    ("claim", "attnlab.theory.noise"): {
        "noisy-keys": ("NoisyKeys", "a little noise in the keys does no harm"),
        "one-head-swings": ("OneHeadSwings", "one head jumps when a key varies in length"),
    },
    ("claim", "attnlab.theory.multihead"): {
        "two-heads-steady": ("TwoHeadsSteady", "two heads hold the average"),
        "averaging-heads-cancels-noise": (
            "AveragingHeadsCancelsNoise",
            "averaging heads cancels independent noise, not shared noise",
        ),
    },
    ("claim", "attnlab.theory.block"): {
        "softmax-permutes": ("SoftmaxPermutes", "softmax and ReLU go along with a permutation"),
        "block-equivariant": ("BlockEquivariant", "a block does not see the order of its tokens"),
    },
    ("claim", "attnlab.theory.order"): {
        "order-invariant-or-equivariant": (
            "OrderInvariantOrEquivariant",
            "outputs move with their tokens; what is pooled does not change",
        ),
        "positions-break-it": ("PositionsBreakIt", "position vectors make the order visible"),
    },
    ("claim", "attnlab.theory.sinusoid"): {
        "sinusoid-unique": ("SinusoidUnique", "no two positions share a sinusoidal code"),
    },
    ("claim", "attnlab.theory.positions"): {
        "rope-is-rotation": ("RopeIsRotation", "rotary is multiplication by e^(itθ)"),
        "rope-relative": ("RopeRelative", "rotary scores depend on the distance only"),
        "rope-needs-time": ("RopeNeedsTime", "turning by head index tells nothing"),
    },
    ("claim", "attnlab.theory.elman"): {
        "elman-remembers-both": ("ElmanRemembersBoth", "two units remember that both were seen"),
    },
    ("claim", "attnlab.theory.recurrent"): {
        "birnn-is-no-lm": ("BirnnIsNoLm", "a bidirectional RNN over a text is no language model"),
        "birnn-of-prefix-is-lm": ("BirnnOfPrefixIsLm", "one over each prefix is"),
    },
    ("claim", "attnlab.theory.dot"): {
        "dot-product-is-not-the-angle": (
            "DotProductIsNotTheAngle",
            "k·q grows with the lengths of k and q",
        ),
    },
    ("claim", "attnlab.theory.scores"): {
        "multiplicative-adds-nothing": (
            "MultiplicativeAddsNothing",
            "kᵀWq is no more than k·q with free projections",
        ),
        "concatenated-ignores-the-query": (
            "ConcatenatedIgnoresTheQuery",
            "wᵀ[k; q] attends alike for every query",
        ),
        "additive-reaches-the-angle": (
            "AdditiveReachesTheAngle",
            "wᵀtanh(W[k; q]) fits cos θ, and θ",
        ),
    },
    ("claim", "attnlab.theory.maps"): {
        "symmetric-attention": ("SymmetricAttention", "W_q = W_k makes attention symmetric"),
        "heads-are-not-one-head": (
            "HeadsAreNotOneHead",
            "two heads are not one of twice the width",
        ),
    },
    ("claim", "attnlab.theory.window"): {
        "window-mask": ("WindowMask", "with a window of width w a query attends to w/2 + 1 keys"),
    },
    ("claim", "attnlab.theory.cost"): {
        "dense-cost": ("DenseCost", "the formula as written costs N² whatever the window"),
        "tiled-cost": ("TiledCost", "in tiles it costs N·w"),
    },
    ("claim", "attnlab.theory.sharing"): {
        "gqa-is-tied-mha": ("GqaIsTiedMha", "grouped queries are heads with tied keys and values"),
        "gqa-saves-the-cache": ("GqaSavesTheCache", "sharing saves cache, not attention maps"),
    },
    ("claim", "attnlab.theory.knowledge"): {
        "pretraining-carries-facts": ("PretrainingCarriesFacts", "facts come with pretraining"),
        "made-up-answers": ("MadeUpAnswers", "asked about nobody, a model answers all the same"),
    },
    ("property", "attnlab.audit.properties.evaluation"): {
        "evaluation": ("Evaluation", "the same inputs give the same outputs"),
    },
    ("property", "attnlab.audit.properties.finite"): {
        "finite": ("Finite", "finite outputs for every length, and for large inputs"),
    },
    ("property", "attnlab.audit.properties.causality"): {
        "causality": ("Causality", "no output moves with a later input"),
    },
    ("property", "attnlab.audit.properties.prefix"): {
        "prefix": ("Prefix", "a beginning gives what the whole text gives, cut there"),
    },
    ("property", "attnlab.audit.properties.window"): {
        "window": ("Window", "how many keys a query attends to"),
    },
    ("property", "attnlab.audit.properties.cache"): {
        "cache": ("Cache", "decoding in pieces gives the outputs of the whole text"),
    },
    ("property", "attnlab.audit.properties.batch"): {
        "batch": ("Batch", "a row does not depend on its neighbours"),
    },
    ("property", "attnlab.audit.properties.padding"): {
        "padding": ("Padding", "padding is never read"),
    },
    ("property", "attnlab.audit.properties.packing"): {
        "packing": ("Packing", "texts that share a row, told apart, are as alone"),
    },
    ("property", "attnlab.audit.properties.precision"): {
        "precision": ("Precision", "what float32 loses beyond rounding"),
    },
    ("property", "attnlab.audit.properties.heads"): {
        "heads": ("Heads", "which key/value head each query head reads"),
    },
    ("property", "attnlab.audit.properties.scale"): {
        "scale": ("Scale", "the factor on query · key"),
    },
    ("property", "attnlab.audit.properties.weights"): {
        "weights": ("Weights", "weights add up to 1 over the keys, and masked ones are 0"),
    },
    ("property", "attnlab.audit.properties.backends"): {
        "backends": ("Backends", "however attention is computed, the outputs are the same"),
    },
    ("property", "attnlab.audit.properties.positions"): {
        "positions": ("Positions", "what positions are: none, absolute, relative, rotary, ALiBi"),
    },
    ("property", "attnlab.audit.properties.training"): {
        "training": ("Training", "the loss is of the next token; gradients in parts; spans"),
    },
    ("check", "attnlab.checks.audit"): {
        "audit": ("AuditCheck", "known bugs are found, correct code is not; family"),
    },
    ("check", "attnlab.checks.fuzz"): {
        "fuzz": ("FuzzCheck", "the page answers or refuses whatever is sent to it; requests"),
    },
    ("check", "attnlab.checks.machines.check"): {
        "machines": ("MachinesCheck", "the same verdicts on every machine; machines, short, docs"),
    },
    ("check", "attnlab.checks.kill"): {
        "kill": ("KillCheck", "killed at any moment, a run ends with the same bits; kills"),
    },
    ("check", "attnlab.checks.statistics"): {
        "statistics": ("StatisticsCheck", "verdicts are false as rarely as they say; draws, seeds"),
    },
    ("check", "attnlab.checks.corruption"): {
        "corruption": ("CorruptionCheck", "a damaged checkpoint is found before use; trials"),
    },
    ("bench", "attnlab.bench.window"): {
        "window": ("WindowBench", "sliding-window attention against its peers"),
    },
    ("bench", "attnlab.bench.decode"): {
        "decode": ("DecodeBench", "attention of one query against PyTorch's own"),
    },
    ("bench", "attnlab.bench.train"): {
        "train": ("TrainBench", "time to a given quality against a well-known recipe; data=PATH"),
    },
}

_OPTIONS = [
    Option(kind, name, f"{module}:{target}", summary)
    for (kind, module), rows in _TABLE.items()
    for name, (target, summary) in rows.items()
]


def register(option: Option) -> None:
    """Add an option of your own at run time."""
    if fault := _fault(option, options(option.kind)):
        raise ValueError(f"{fault}; choose another name")
    _OPTIONS.append(option)


def kinds() -> list[str]:
    return list(KINDS)


def options(kind: str) -> list[Option]:
    """Ours first, then those of other packages."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; {suggest(kind, kinds())}")
    return [option for option in (*_OPTIONS, *_foreign()) if option.kind == kind]


def find(kind: str, name: str) -> Option:
    """The option; `_` and `-` are alike in names."""
    wanted = name.replace("_", "-")
    for option in _OPTIONS:  # before other packages are looked for
        if (option.kind, option.name) == (kind, wanted):
            return option
    known = {option.name: option for option in options(kind)}
    if wanted not in known:
        raise ValueError(f"unknown {kind} {name!r}; {suggest(wanted, list(known))}")
    return known[wanted]


def load(kind: str, name: str) -> Any:
    """The settings class of an option (of a preset, its function), imported now."""
    option = find(kind, name)
    module, _, attribute = option.target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever another package does when it is imported
        if option in _OPTIONS:
            raise
        raise ValueError(
            f"{kind} {name!r} of {option.origin} cannot be imported: {error}"
        ) from error


def name_of(kind: str, settings: object) -> str:
    """The registered name of a settings object."""
    cls = type(settings)
    target = f"{cls.__module__}:{cls.__qualname__}"
    for option in _OPTIONS:
        if (option.kind, option.target) == (kind, target):
            return option.name
    for option in options(kind):  # another package may name a class where it is not defined
        if option.target.split(".")[0] == target.split(".")[0] and load(kind, option.name) is cls:
            return option.name
    raise ValueError(
        f"{target} is not registered as a {kind}; {suggest('', [o.name for o in options(kind)])}"
    )


def kind_of(cls: type) -> str:
    """The kind that a settings class is registered as; empty if it is not."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    return next((option.kind for option in _OPTIONS if option.target == target), "")


# Words of the field for what has another name here.
SYNONYMS = {
    "rope": "rotary",
    "gqa": "grouped",
    "mqa": "multi_query",
    "mha": "multi_head",
    "lr": "rate",
    "learning_rate": "rate",
    "batch_size": "batch",
    "block_size": "context",
    "max_len": "context",
    "seq_len": "context",
    "layers": "depth",
    "n_layer": "depth",
    "n_layers": "depth",
    "num_layers": "depth",
    "n_head": "heads",
    "n_heads": "heads",
    "num_heads": "heads",
    "d_model": "width",
    "n_embd": "width",
    "hidden_size": "width",
    "vocab_size": "vocabulary",
    "gpu": "cuda",
}
CLOSE, TIE = 0.6, 0.05  # likeness of two names, and a difference in it that is none


def suggest(wrong: str, right: Sequence[str], inside: Sequence[str] = ()) -> str:
    """The end of an error message: the closest valid names, else all of them.

    `inside` are names that are not listed, but suggested to whoever writes their last part.
    """
    meant = {_last(wrong), SYNONYMS.get(_last(wrong), _last(wrong))}
    near = [one for one in [*right, *inside] if _last(one) in meant]
    near = near or [one for one in right if not meant.isdisjoint(_last(one).split("_"))]
    if not near:
        like = {one: _likeness(_last(wrong), _last(one)) for one in right}
        best = max(like.values(), default=0)
        near = [one for one in right if best >= CLOSE and like[one] > best - TIE]
    if near:
        return f"did you mean {' or '.join(map(repr, list(dict.fromkeys(near))[:3]))}?"
    return f"choose from {', '.join(right)}"


def _likeness(one: str, other: str) -> float:
    """From 0 to 1; letters in another order are a slip of the fingers."""
    if sorted(one) == sorted(other):
        return 0.9
    return difflib.SequenceMatcher(None, one, other).ratio()


def _last(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").lower()


@functools.cache
def _foreign() -> list[Option]:
    """The options of other installed packages; what cannot be used is a warning, no error."""
    from importlib.metadata import entry_points  # 20 ms that most programs need not spend

    found: list[Option] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            given = [replace(option, origin=origin) for option in point.load()]
        except Exception as error:  # whatever the other package does when it is imported
            _warn(f"options of {origin} are left out: {type(error).__name__}: {error}")
            continue
        for option in given:
            if fault := _fault(option, [*_OPTIONS, *found]):
                _warn(f"{option.kind} {option.name!r} of {origin} is left out: {fault}")
            else:
                found.append(option)
    return found


def _fault(option: Option, known: list[Option]) -> str:
    """Why an option cannot be added; empty if it can."""
    if option.kind not in KINDS:
        return f"unknown kind {option.kind!r}; {suggest(option.kind, kinds())}"
    if not re.fullmatch("[a-z0-9-]+", option.name):
        return "a name has small letters, digits and dashes"
    for other in known:
        if (other.kind, other.name) == (option.kind, option.name):
            return f"{option.kind} {option.name!r} is registered already, by {other.origin}"
    return ""


def _warn(text: str) -> None:
    warnings.warn(" ".join(text.split()), OptionWarning, stacklevel=2)
