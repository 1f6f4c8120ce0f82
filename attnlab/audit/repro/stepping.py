"""How code decodes, as the functions new_cache and step of a script.

Axes: b batch, t time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from attnlab.audit.errors import ScriptError
from attnlab.audit.subject.calls import Call, record
from attnlab.audit.subject.convention import Convention
from attnlab.audit.subject.decoder import Decoder, try_copy
from attnlab.audit.subject.protocols import Returned

NEW_CACHE = "new_cache(before: Any = None)"


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """How code decodes, in words: `kept` is what it is given back, `start` where it goes on."""

    call: Call
    decoder: Decoder = Decoder(protocol=Returned())  # with the dtype in what it makes

    @property
    def late(self) -> bool:
        """Whether the cache is made when the number of rows is known."""
        return bool(self.decoder.words) and "len(x)" in self.decoder.make

    @property
    def counts(self) -> bool:
        one = self.decoder
        told = (one.start, one.end, one.places)
        return self.late or bool(one.setup) or any(name is not None for name in told)

    @property
    def renews(self) -> bool:
        """Whether a second text in the same code begins otherwise than the first."""
        return bool(self.decoder.renew or self.decoder.setup)

    def new(self) -> list[str]:
        """The body of new_cache."""
        entries, protocol = [], self.decoder.protocol
        if self.decoder.words:
            entries += [f'"kept": {"None" if self.late else self.decoder.make}']
        same = 'copy.deepcopy(code) if before is None else before["code"]'
        entries += [f'"code": {same}'] * protocol.copies
        entries += ['"again": before is not None'] * self.renews
        entries += ['"text": None'] * protocol.whole
        entries += ['"start": 0'] * self.counts
        return [f"return {{{', '.join(entries)}}}"]

    def step(self, outputs: str) -> list[str]:
        """The body of step."""
        about, decoder = '"""The outputs of x, which goes on where the cache ends."""', self.decoder
        lines, protocol = [], decoder.protocol
        if protocol.copies:
            lines += ['code = cache["code"]  # it keeps what it has seen itself']
        if decoder.setup:
            lines += ['if cache["start"] == 0 and not cache["again"]:', f"    {decoder.setup}"]
            lines += ["    code.to(next(code.parameters()).dtype)"]
        if self.renews:
            lines += ['if cache["again"]:  # it has kept another text']
            lines += [f"    {one}" for one in decoder.renew]
            lines += ["    code.to(next(code.parameters()).dtype)"] * bool(decoder.setup)
            lines += ['    cache["again"] = False']
        if self.late:
            lines += ['if cache["start"] == 0:', f'    cache["kept"] = {decoder.make}']
        names = ["kept"] * bool(decoder.words) + ["start"] * self.counts
        if names:
            values = ", ".join(f'cache["{name}"]' for name in names)
            lines += [f"{', '.join(names)} = {values}"]
        if protocol.whole:
            lines += ['before = cache["text"]  # it takes the text from its start on']
            lines += ['cache["text"] = x = x if before is None else torch.cat((before, x), dim=1)']
        code = f"code.{decoder.method}" if decoder.method else "code"
        lines += [f"found = {self.call.text(code)}"]
        if protocol.returns:
            parts = f", {len(decoder.words)}" if len(decoder.words) > 1 else ""
            lines += [f'cache["kept"] = kept_in(found, {decoder.words[0]!r}{parts})']
        lines += ['cache["start"] = start + x.shape[1]'] * self.counts
        if not decoder.method and not protocol.whole:
            return [about, *lines, f"return {outputs}"]
        if decoder.method:
            each, pieces = "tensor_in(found).reshape(len(x), 1, -1)", "x.split(1, dim=1)"
        else:
            each, pieces = outputs, '[x] if cache["text"] is None else x.split(1, dim=1)'
        return [
            about,
            "outputs = []",
            f"for x in {pieces}:  # one position a call",
            *(f"    {line}" for line in lines),
            f"    outputs.append({each})",
            "return torch.cat(outputs, dim=1)",
        ]


def stepping_of(convention: Convention, x: Tensor, known: Mapping[str, str]) -> Stepping:
    decoder, module = convention.decoder, convention.module
    assert decoder is not None and module is not None
    if decoder.protocol.copies and try_copy(module) is None:
        raise ScriptError("it keeps what it has seen, and cannot be copied")
    given = dict(known) | dict.fromkeys(decoder.flags, "True")
    several = len(decoder.words) > 1
    given |= {word: f"kept[{n}]" if several else "kept" for n, word in enumerate(decoder.words)}
    places = "torch.arange(start, start + x.shape[1])"
    if decoder.start is not None:
        given[decoder.start] = "start" if decoder.counted else places
    if decoder.end is not None:
        given[decoder.end] = "start + x.shape[1]"
    if decoder.places is not None:
        given[decoder.places] = f"{places}.expand(len(x), -1)"
    if decoder.method:
        told = (decoder.start, decoder.end, decoder.places)
        names = [*decoder.flags, *decoder.words, *(one for one in told if one is not None)]
        inputs = "x[:, 0]" if decoder.flat else "x"
        call = Call((inputs,), {one: given[one] for one in names})
    else:
        call = record(module, lambda: convention.step(x, decoder.new_cache()), given, x=x)
    return Stepping(call=call, decoder=decoder.in_dtype(convention.dtype))
