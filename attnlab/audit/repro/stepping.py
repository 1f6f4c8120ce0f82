"""How code decodes, as the functions new_cache and step of a script.

Axes: b batch, t time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from attnlab.audit.errors import ScriptError
from attnlab.audit.repro.prelude import kept_in
from attnlab.audit.subject.calls import Call, record
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.decoder import try_copy


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How code decodes, in words: `kept` is what it is given back, `start` where it goes on."""

    call: Call
    make: str = ""  # what is kept at first; empty if nothing is given to the code
    word: str = ""  # by which it is looked for among what the code gives; empty if it is not there
    counts: bool = False
    held: bool = False  # the code keeps it: every text has a copy of its own
    setup: str = ""  # by which that copy makes room
    method: str = ""  # that takes one position at a time

    def new(self) -> list[str]:
        """The body of new_cache."""
        entries = []
        if self.make:
            entries.append('"kept": ' + ("None" if "len(x)" in self.make else self.make))
        if self.held:
            entries.append('"code": copy.deepcopy(code)')
        entries += ['"start": 0'] if self.counts or self.setup or "len(x)" in self.make else []
        return [f"return {{{', '.join(entries)}}}"]

    def step(self, outputs: str) -> list[str]:
        """The body of step."""
        about = '"""The outputs of x, which goes on where the cache ends."""'
        lines, counts = [], '"start"' in self.new()[0]
        if self.held:
            lines += ['code = cache["code"]  # it keeps what it has seen itself']
        if self.setup:
            lines += ['if cache["start"] == 0:', f"    {self.setup}"]
            lines += ["    code.to(next(code.parameters()).dtype)"]
        if "len(x)" in self.make:
            lines += ['if cache["start"] == 0:', f'    cache["kept"] = {self.make}']
        names = ["kept"] * bool(self.make) + ["start"] * counts
        if names:
            values = ", ".join(f'cache["{name}"]' for name in names)
            lines += [f"{', '.join(names)} = {values}"]
        lines += [f"found = {self.call.text(f'code.{self.method}' if self.method else 'code')}"]
        if self.word:
            lines += [f"given = kept_in(found, {self.word!r})"]
            lines += ['cache["kept"] = kept if given is None else given']
        lines += ['cache["start"] = start + x.shape[1]'] * counts
        if not self.method:
            return [about, *lines, f"return {outputs}"]
        lines += ["outputs.append(tensor_in(found).reshape(len(x), 1, -1))"]
        loop = ["outputs = []", "for x in x.split(1, dim=1):  # it takes one position at a time"]
        return [
            about,
            *loop,
            *(f"    {line}" for line in lines),
            "return torch.cat(outputs, dim=1)",
        ]


def stepping_of(convention: Convention, x: Tensor, known: Mapping[str, str]) -> Stepping:
    decoder, module = convention.decoder, convention.module
    assert decoder is not None and module is not None
    if decoder.held and try_copy(module) is None:
        raise ScriptError("it keeps what it has seen, and cannot be copied")
    given, outputs = dict(known), []
    if decoder.word is not None:
        given[decoder.word] = "kept"
    if decoder.start is not None:
        count = "torch.arange(start, start + x.shape[1])"
        given[decoder.start] = "start" if decoder.counted else count

    def run() -> None:
        outputs.append(convention.step(x, decoder.new_cache()))

    if decoder.method:
        names = [*decoder.flags, *filter(None, (decoder.word, decoder.start))]
        call = Call(
            ("x[:, 0]" if decoder.flat else "x",), {one: given.get(one, "True") for one in names}
        )
    else:
        call = record(module, run, given, x=x)
    word = decoder.word or ""
    gives = bool(decoder.method) or kept_in(outputs[0], word) is not None
    dtype = f"dtype={convention.dtype}"
    return Stepping(
        call=call,
        make=decoder.make.replace("dtype=dtype", dtype) if word else "",
        word=word if gives else "",
        counts=decoder.start is not None,
        held=decoder.held,
        setup=decoder.setup.replace("dtype=dtype", dtype),
        method=decoder.method,
    )
