"""Every option of the laboratory by kind and name, found without importing it.

A row here names the settings class of an option; the class is imported when it is used, so that
listing and `--help` need no torch. Adding an option is one class and one row here.

Another package adds options without a row here: it has an entry point in the group
"attnlab.options" that names a list of `Option`. On a clash of names ours is used.

A person's own code needs neither: `model.attention=mine.py:Mine`, or `package.module:Name`, stands
for an option of the kinds in OWN. It is not run to be named, only to be built. A package gives such
code a name by an entry point in the group "attnlab.attention", "attnlab.score" and so on:

    [project.entry-points."attnlab.attention"]
    gated = "my_package.attention:Gated"                # model.attention=gated
"""

import functools
import importlib
import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

from attnlab.registry_causes import CAUSES
from attnlab.suggestions import nearest as nearest
from attnlab.suggestions import suggest as suggest

GROUP = "attnlab.options"  # of entry points


@dataclass(frozen=True)
class Option:
    kind: str
    name: str
    target: str  # "package.module:Class"
    summary: str
    origin: str = "attnlab"  # the package that it comes from
    code: str = ""  # of a person's own: "mine.py:Mine"


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
    "scaling": Kind("rotary positions of longer texts", "model.positions.scaling=yarn"),
    "model": Kind("language models", "model=elman"),
    "corpus": Kind("texts to train on", "corpus=biographies"),
    "tokenizer": Kind("how text becomes tokens", "tokenizer=bpe"),
    "objective": Kind("what a model learns to predict", "objective=span-corruption"),
    "optimiser": Kind("how gradients change the weights", "optimiser=muon"),
    "preset": Kind("recipes to train by", "attnlab train tiny"),
    "study": Kind("whole experiments, from the text to a report", "attnlab study window"),
    "claim": Kind("statements of the theory, each with its experiment", "attnlab claims copy"),
    "property": Kind("what an audit measures of attention code", "attnlab audit file.py:Name"),
    "protocol": Kind("how audited code shares a KV cache with its caller", "attnlab list caches"),
    "cause": Kind("why two models differ", "attnlab diff A B"),
    "check": Kind("promises of the laboratory, put to the test", "attnlab check kill"),
    "bench": Kind("speed and memory against peers", "attnlab bench window"),
}

# kind: {name: (target in this package, summary)}; a row has at most two lines
# fmt: off
_TABLE = {
    "attention": {
        "multi-head": ("attention.heads:MultiHead", "a key/value head for every query head"),
        "grouped": ("attention.heads:Grouped",
            "query heads share kv_heads key/value heads in groups"),
        "multi-query": ("attention.heads:MultiQuery", "all query heads share one key/value head"),
        "differential": ("attention.differential:Differential",
            "each head subtracts one softmax map from another"),
        "latent": ("attention.latent:Latent",
            "keys and values out of one short vector a token, which the cache keeps"),
        "gated-delta": ("attention.delta:GatedDelta",
            "a state in place of keys and values (Gated DeltaNet); full_every: hybrids"),
    },
    "score": {
        "scaled-dot": ("attention.scores:ScaledDot", "k·q / √d"),
        "multiplicative": ("attention.scores:Multiplicative", "kᵀ W q / √d"),
        "concatenated": ("attention.scores:Concatenated", "wᵀ [k; q]"),
        "additive": ("attention.scores:Additive", "wᵀ tanh(W [k; q]), computed in chunks"),
    },
    "cache": {
        "full": ("attention.cache:Full", "keeps every key and value; grows with the text"),
        "ring": ("attention.cache:Ring",
            "keeps the keys that a window still reaches; constant memory"),
    },
    "positions": {
        "none": ("attention.positions:NoPositions", "no position information"),
        "learned": ("attention.positions:Learned",
            "a trained vector for each position, added to the tokens"),
        "sinusoidal": ("attention.positions:Sinusoidal",
            "sines and cosines of the position, added to the tokens"),
        "rotary": ("attention.positions:Rotary",
            "rotates q and k; layout=half-split or interleaved, base, scaling, sections"),
        "alibi": ("attention.positions:Alibi",
            "scores fall with distance, each head at its own slope"),
        "t5": ("attention.distance:T5", "a learned bias for each bucket of distances"),
        "kerple": ("attention.distance:Kerple",
            "scores fall with the log or a power of distance, learned"),
        "fire": ("attention.distance:Fire",
            "a learned function of the distance as a part of the text so far"),
        "rotary-growing": ("attention.mistakes:GrowingRotary",
            "a mistake, as a control: frequencies grow, not fall"),
        "rotary-by-head": ("attention.mistakes:HeadRotary",
            "a mistake, as a control: turns by head, not by position"),
    },
    "scaling": {
        "none": ("attention.rotary_scaling:NoScaling", "rates as the base gives them"),
        "linear": ("attention.rotary_scaling:Linear", "all rates / factor"),
        "ntk": ("attention.rotary_scaling:Ntk", "a larger base: the slower a pair, the more"),
        "yarn": ("attention.rotary_scaling:Yarn",
            "slow pairs / factor, fast ones as they are; longer cos and sin"),
        "llama3": ("attention.rotary_scaling:Llama3",
            "slow pairs / factor, fast ones as they are, bands by turns"),
        "longrope": ("attention.rotary_scaling:LongRope",
            "a factor for each pair, others in a longer context"),
        "proportional": ("attention.rotary_scaling:Proportional",
            "the slowest pairs do not turn (p-RoPE)"),
    },
    "model": {
        "transformer": ("models.transformer:TransformerSettings", "the transformer language model"),
        "elman": ("models.recurrent:ElmanSettings", "Elman recurrent language model"),
        "birnn": ("models.recurrent:BidirectionalSettings",
            "bidirectional RNN: reads ahead, no language model"),
        "prefix-birnn": ("models.recurrent:PrefixBidirectionalSettings",
            "bidirectional RNN of each prefix, O(t²)"),
    },
    "corpus": {
        "python-docs": ("data.corpora:PythonDocs",
            "English about Python, from the standard library"),
        "text": ("data.corpora:TextFiles", "a text file or a folder of them; path"),
        "prepared": ("data.prepared.corpus:Prepared",
            "tokens that attnlab prepare has made; path"),
        "birthplaces": ("data.birthplaces:Birthplaces",
            "a sentence a person, and where they were born; path"),
        "biographies": ("data.biographies:Biographies",
            "invented people, with questions about them"),
    },
    "tokenizer": {
        "characters": ("data.tokens:Characters", "a token for each character of the text"),
        "bytes": ("data.tokens:Bytes", "a token for each byte of UTF-8"),
        "bpe": ("data.bpe:Bpe", "byte-level pairs, learned from the text; vocabulary"),
        "huggingface": ("data.huggingface:HuggingFace",
            "that of an imported model; with start=FOLDER"),
    },
    "objective": {
        "causal": ("data.objectives:Causal", "the next token"),
        "span-corruption": ("data.objectives:SpanCorruption", "a span that was taken out"),
        "questions": ("data.objectives:Questions", "the answer to a question, and only that"),
        "mixed": ("data.mixed:Mixed",
            "spans, recall and questions side by side; questions, recall, part"),
    },
    "optimiser": {
        "adamw": ("training.optim:AdamW", "AdamW for every parameter"),
        "muon": ("training.optim:Muon", "orthogonalised momentum for matrices, AdamW for the rest"),
    },
    "preset": {
        "tiny": ("presets:tiny", "English about Python, a minute on two cores"),
        "shakespeare-cpu": ("presets:shakespeare_cpu",
            "character Shakespeare on two cores; data=PATH"),
        "shakespeare-gpu": ("presets:shakespeare_gpu",
            "character Shakespeare on one GPU; data=PATH"),
        "birthplaces-pretrain": ("presets:birthplaces_pretrain",
            "pretrain by span corruption; data=FOLDER"),
        "birthplaces-pretrain-learned": ("presets:birthplaces_pretrain_learned",
            "… with learned positions"),
        "birthplaces-finetune": ("presets:birthplaces_finetune",
            "finetune on questions; start=RUN"),
        "birthplaces-finetune-learned": ("presets:birthplaces_finetune_learned",
            "… with learned positions"),
        "birthplaces-none": ("presets:birthplaces_none", "questions without pretraining"),
        "birthplaces-best": ("presets:birthplaces_best", "our best recipe, in one go, for a GPU"),
        "rope-gqa-absolute": ("presets:rope_gqa_absolute",
            "learned positions, six heads; data=PATH"),
        "rope-gqa-rotary": ("presets:rope_gqa_rotary", "rotary positions, six heads"),
        "rope-gqa-grouped": ("presets:rope_gqa_grouped", "learned positions, two key/value heads"),
        "rope-gqa-both": ("presets:rope_gqa_both", "rotary positions, two key/value heads"),
        "elman": ("presets:elman", "a recurrent language model of English about Python"),
    },
    "study": {
        "birthplaces": ("studies.birthplaces.experiment:BirthplacesStudy",
            "does pretraining carry facts? data=FOLDER or invented"),
        "rope-gqa": ("studies.rope_gqa.experiment:RopeGqaStudy",
            "rotary positions and shared key/value heads; data=FILE"),
        "recurrent": ("studies.recurrent.experiment:RecurrentStudy",
            "Elman, bidirectional RNN and transformer; data=FILE"),
        "window": ("studies.window.experiment:WindowStudy",
            "sliding windows against full attention; data=FILE"),
    },
    "claim": {
        "weights-are-a-distribution": ("theory.distribution:WeightsAreADistribution",
            "softmax weights add up to 1 and follow the scores"),
        "copy": ("theory.lookup:Copy", "a leading score copies its value"),
        "average-of-two": ("theory.lookup:AverageOfTwo", "β(k_a + k_b) averages two values"),
        "recover-a-part": ("theory.lookup:RecoverAPart",
            "a sum of two subspaces can be taken apart"),
        "opposite-of-the-other-keys": ("theory.opposite:OppositeOfTheOtherKeys",
            "subtracting the other keys doubles the lead and no more"),
        "noisy-keys": ("theory.noise:NoisyKeys", "a little noise in the keys does no harm"),
        "one-head-swings": ("theory.noise:OneHeadSwings",
            "one head jumps when a key varies in length"),
        "two-heads-steady": ("theory.multihead:TwoHeadsSteady", "two heads hold the average"),
        "averaging-heads-cancels-noise": ("theory.multihead:AveragingHeadsCancelsNoise",
            "averaging heads cancels independent noise, not shared noise"),
        "softmax-permutes": ("theory.block:SoftmaxPermutes",
            "softmax and ReLU go along with a permutation"),
        "block-equivariant": ("theory.block:BlockEquivariant",
            "a block does not see the order of its tokens"),
        "order-invariant-or-equivariant": ("theory.order:OrderInvariantOrEquivariant",
            "outputs move with their tokens; what is pooled does not change"),
        "positions-break-it": ("theory.order:PositionsBreakIt",
            "position vectors make the order visible"),
        "sinusoid-unique": ("theory.sinusoid:SinusoidUnique",
            "no two positions share a sinusoidal code"),
        "rope-is-rotation": ("theory.positions:RopeIsRotation",
            "rotary is multiplication by e^(itθ)"),
        "rope-relative": ("theory.positions:RopeRelative",
            "rotary scores depend on the distance only"),
        "rope-needs-time": ("theory.positions:RopeNeedsTime",
            "turning by head index tells nothing"),
        "elman-remembers-both": ("theory.elman:ElmanRemembersBoth",
            "two units remember that both were seen"),
        "birnn-is-no-lm": ("theory.recurrent:BirnnIsNoLm",
            "a bidirectional RNN over a text is no language model"),
        "birnn-of-prefix-is-lm": ("theory.recurrent:BirnnOfPrefixIsLm", "one over each prefix is"),
        "dot-product-is-not-the-angle": ("theory.dot:DotProductIsNotTheAngle",
            "k·q grows with the lengths of k and q"),
        "multiplicative-adds-nothing": ("theory.scores:MultiplicativeAddsNothing",
            "kᵀWq is no more than k·q with free projections"),
        "concatenated-ignores-the-query": ("theory.scores:ConcatenatedIgnoresTheQuery",
            "wᵀ[k; q] attends alike for every query"),
        "additive-reaches-the-angle": ("theory.scores:AdditiveReachesTheAngle",
            "wᵀtanh(W[k; q]) fits cos θ, and θ"),
        "symmetric-attention": ("theory.maps:SymmetricAttention",
            "W_q = W_k makes attention symmetric"),
        "heads-are-not-one-head": ("theory.maps:HeadsAreNotOneHead",
            "two heads are not one of twice the width"),
        "window-mask": ("theory.window:WindowMask",
            "with a window of width w a query attends to w/2 + 1 keys"),
        "dense-cost": ("theory.cost:DenseCost",
            "the formula as written costs N² whatever the window"),
        "tiled-cost": ("theory.cost:TiledCost", "in tiles it costs N·w"),
        "gqa-is-tied-mha": ("theory.sharing:GqaIsTiedMha",
            "grouped queries are heads with tied keys and values"),
        "gqa-saves-the-cache": ("theory.sharing:GqaSavesTheCache",
            "sharing saves cache, not attention maps"),
        "delta-rule-overwrites": ("theory.overwrite:DeltaRuleOverwrites",
            "the delta rule replaces a key's value where linear attention adds"),
        "pretraining-carries-facts": ("theory.knowledge:PretrainingCarriesFacts",
            "facts come with pretraining"),
        "made-up-answers": ("theory.knowledge:MadeUpAnswers",
            "asked about nobody, a model answers all the same"),
        "sink-attends-to-nothing": ("theory.caps:SinkAttendsToNothing",
            "with a sink, weights can add up to nearly 0"),
        "soft-cap-bounds-ratios": ("theory.caps:SoftCapBoundsRatios",
            "a cap c keeps ratios of weights below e^(2c)"),
        "absorbed-is-plain": ("theory.absorbed:AbsorbedIsPlain",
            "latent attention's two forms are one function"),
        "packing-is-one-by-one": ("theory.packing:PackingIsOneByOne",
            "with segments, packed documents are as alone"),
        "stacked-windows-reach": ("theory.reach:StackedWindowsReach",
            "L layers with windows of W keys reach L·(W − 1) + 1 tokens"),
        "yarn-keeps-fast-pairs": ("theory.yarn:YarnKeepsFastPairs",
            "YaRN divides the rates of slow pairs and keeps fast ones"),
    },
    "property": {
        "evaluation": ("audit.properties.evaluation:Evaluation",
            "the same inputs give the same outputs"),
        "finite": ("audit.properties.finite:Finite",
            "finite outputs for every length, and for large inputs"),
        "causality": ("audit.properties.causality:Causality", "no output moves with a later input"),
        "prefix": ("audit.properties.prefix:Prefix",
            "a beginning gives what the whole text gives, cut there"),
        "window": ("audit.properties.window:Window", "how many keys a query attends to"),
        "cache": ("audit.properties.cache:Cache",
            "decoding in pieces gives the outputs of the whole text"),
        "batch": ("audit.properties.batch:Batch", "a row does not depend on its neighbours"),
        "padding": ("audit.properties.padding:Padding", "padding is never read"),
        "context": ("audit.properties.context:ContextRows",
            "what it attends to besides its text: rows and padding"),
        "packing": ("audit.properties.packing:Packing",
            "texts that share a row, told apart, are as alone"),
        "precision": ("audit.properties.precision:Precision", "what float32 loses beyond rounding"),
        "heads": ("audit.properties.heads:Heads", "which key/value head each query head reads"),
        "scale": ("audit.properties.scale:Scale", "the factor on query · key"),
        "soft-cap": ("audit.properties.soft_cap:SoftCap",
            "whether scores are bent by a soft cap, and by which"),
        "sink": ("audit.properties.sink:SinkOfHeads",
            "what takes weight and gives nothing: one more score a head"),
        "weights": ("audit.properties.weights:Weights",
            "weights add up to 1 over the keys, and masked ones are 0"),
        "backends": ("audit.properties.backends:Backends",
            "however attention is computed, the outputs are the same"),
        "positions": ("audit.properties.positions:Positions",
            "what positions are: none, absolute, relative, rotary, ALiBi"),
        "training": ("audit.properties.training:Training",
            "the loss is of the next token; gradients in parts; spans"),
    },
    "protocol": {
        "returned": ("audit.subject.protocols:Returned",
            "the call gives the cache back, and the next call takes it"),
        "filled": ("audit.subject.protocols:Filled",
            "the caller makes an object, and the code fills it"),
        "transformers": ("audit.subject.protocols:CacheObject",
            "the caller makes a DynamicCache of transformers, which the code updates"),
        "static": ("audit.subject.protocols:Static",
            "the caller makes tables with room for every position, and tells where to write"),
        "states": ("audit.subject.protocols:States",
            "the caller makes the states of a convolution and a recurrence, for every layer"),
        "set-up": ("audit.subject.protocols:SetUp",
            "the module keeps the cache, in room that a method makes beforehand"),
        "held": ("audit.subject.protocols:Held", "the module keeps the cache"),
        "whole-text": ("audit.subject.protocols:WholeText",
            "the code takes the text from its start on, with its cache"),
    },
    "cause": CAUSES,
    "check": {
        "audit": ("checks.audit:AuditCheck",
            "known bugs are found, correct code is not (family=, mutate=)"),
        "fuzz": ("checks.fuzz:FuzzCheck",
            "the page answers or refuses whatever is sent to it (requests=)"),
        "machines": ("checks.machines.check:MachinesCheck",
            "the same verdicts on every machine (machines=, short=, docs=)"),
        "kill": ("checks.kill:KillCheck",
            "killed at any moment, a run ends with the same bits (kills=)"),
        "statistics": ("checks.statistics:StatisticsCheck",
            "verdicts are false as rarely as they say (draws=, seeds=)"),
        "corruption": ("checks.corruption:CorruptionCheck",
            "a damaged checkpoint is found before use (trials=)"),
        "doctor": ("checks.doctor:DoctorCheck",
            "why two models differ is found, and nothing is guessed (family=)"),
        "hostile": ("checks.hostile.check:HostileCheck",
            "files and code of a stranger get nothing done (family=)"),
    },
    "bench": {
        "window": ("bench.window:WindowBench", "sliding-window attention against its peers"),
        "decode": ("bench.decode:DecodeBench", "attention of one query against PyTorch's own"),
        "packed": ("bench.packed:PackedBench", "documents packed in a row against one by one"),
        "generate": ("bench.generate:GenerateBench",
            "tokens a second against transformers with the same weights"),
        "transformers": ("bench.transformers:TransformersBench",
            "our attention in models of transformers against theirs"),
        "cluster": ("bench.cluster:ClusterBench", "Ray clusters of more and more workers"),
        "prepare": ("bench.prepare:PrepareBench", "made-up text to tokens: rate, memory, kills"),
        "train": ("bench.train:TrainBench",
            "time to a given quality against a well-known recipe; data=PATH"),
    },
}
# fmt: on

# kind: the settings of a person's own code in its place
OWN = {
    "attention": "attnlab.attention.own:OwnAttention",
    "score": "attnlab.attention.own:OwnScore",
    "positions": "attnlab.attention.own:OwnPositions",
    "model": "attnlab.models.own:OwnModel",
}

_OPTIONS = [
    Option(kind, name, f"attnlab.{target}", summary)
    for kind, rows in _TABLE.items()
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
    if ":" in name:
        if kind not in OWN:
            raise ValueError(
                f"{kind} {name!r}: code of your own can be {', '.join(OWN)}; "
                f"{suggest('', [option.name for option in options(kind)])}"
            )
        return Option(kind, name, OWN[kind], "code of your own", "you", code=name)
    if name.endswith(".py") and kind in OWN:
        raise ValueError(f"{kind} {name!r} is a file; name a class or function in it: {name}:Name")
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
        found = getattr(importlib.import_module(module), attribute)
        return found.for_code(option.code, option.name) if option.code else found
    except Exception as error:  # whatever another package does when it is imported
        if option in _OPTIONS or option.code:
            raise
        raise ValueError(
            f"{kind} {name!r} of {option.origin} cannot be imported: {error}"
        ) from error


def name_of(kind: str, settings: object) -> str:
    """The registered name of a settings object."""
    cls = type(settings)
    if getattr(cls, "code", ""):
        return str(cls.option)  # type: ignore[attr-defined]
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
    own = [f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__]
    if getattr(cls, "code", ""):
        return next((kind for kind, base in OWN.items() if base in own), "")
    target = f"{cls.__module__}:{cls.__qualname__}"
    return next((option.kind for option in _OPTIONS if option.target == target), "")


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
            _add(option, found)
    for kind, target in OWN.items():
        for point in sorted(entry_points(group=f"attnlab.{kind}"), key=lambda one: one.name):
            origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
            _add(Option(kind, point.name, target, point.value, origin, code=point.value), found)
    return found


def _add(option: Option, found: list[Option]) -> None:
    if fault := _fault(option, [*_OPTIONS, *found]):
        _warn(f"{option.kind} {option.name!r} of {option.origin} is left out: {fault}")
    else:
        found.append(option)


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
