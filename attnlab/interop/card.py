"""The model card of an export: what the model is, how it is loaded, what was compared."""

from attnlab.interop.parity import Parity
from attnlab.models.model import parameters
from attnlab.printable import one_line
from attnlab.training.saved import Saved

LOAD = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```"""


def card(
    saved: Saved, model_type: str, parity: Parity, name: str, *, own_code: bool = False
) -> str:
    state, recipe = saved.state, saved.recipe
    loss = "not measured" if state.best_loss is None else f"{state.best_loss:.4f}"
    trust = ", trust_remote_code=True" if own_code else ""
    said = {True: "the same", False: "different", None: "not compared"}
    logits = f"logits of 2 texts of {parity.tokens} tokens, float64"
    rows = {
        logits: f"{parity.logits:.1e} of the largest",
        "the same in float32, as the model is loaded": f"{parity.float32:.1e} of the largest",
        f"greedy texts of {parity.greedy} tokens, with a KV cache": said[parity.cached],
        "without": said[parity.uncached],
        "three prompts as a left-padded batch": said[parity.left_padded],
        "ids and text of the tokenizer": said[parity.tokenizer],
    }
    rows |= {f"texts beyond a {one}": "not compared" for one in parity.unreached}
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [attnlab]",
        "---",
        "",
        f"# {one_line(name)}",
        "",
        f"A {model_type} model of {parameters(saved.model):,} parameters, trained with attnlab "
        f"({state.step:,} steps; validation loss {loss}).",
        "",
        LOAD.format(folder=one_line(name), trust=trust),
        "",
        "## Parity",
        "",
        f"Compared with the model it was exported from, by transformers {parity.transformers} in a "
        "process without attnlab; `parity.json` has the numbers.",
        "",
        "| what | difference |",
        "|---|---|",
        *[f"| {what} | {found} |" for what, found in rows.items()],
        "",
        "## Training",
        "",
        f"- objective: {type(recipe.objective).__name__}; tokens in a sample: {recipe.length}; "
        f"samples in a step: {recipe.batch}; random seed: {recipe.seed}",
        f"- text: fingerprint `{state.corpus or 'not recorded'}`",
        f"- tokenizer: {type(saved.tokenizer).__name__}, {saved.tokenizer.size:,} tokens",
        "",
    ]
    return "\n".join(lines)
