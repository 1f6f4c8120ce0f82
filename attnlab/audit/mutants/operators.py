"""Operators: each makes one kind of mistake, in every place where it can be made.

What is special comes first: where two operators make the same text, the first has made it.
"""

import ast
import copy
from collections.abc import Iterator

from attnlab.audit.mutants.mutate import Operator


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def text_of(node: ast.AST) -> str:
    return ast.unparse(node)


def called(node: ast.AST) -> str:
    """The name of what is called: `softmax` of `x.softmax(-1)`; empty if nothing is."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def method(node: ast.AST, *names: str) -> ast.expr | None:
    """What a method of one of these names is called on."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    return node.func.value if node.func.attr in names else None


def binary(node: ast.AST, *kinds: type[ast.operator]) -> tuple[ast.expr, ast.expr] | None:
    """The two sides of an operation of one of these kinds."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, kinds):
        return node.left, node.right
    return None


def number(node: ast.AST | None) -> int | None:
    """A whole number, as it is written."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def with_keyword(node: ast.Call, name: str, value: ast.expr | None) -> ast.Call:
    """The call with another value of a keyword; without it if None."""
    other = copy.deepcopy(node)
    kept = [one for one in other.keywords if one.arg != name]
    other.keywords = [*kept, *([ast.keyword(name, value)] if value is not None else [])]
    return other


def keyword(node: ast.AST, name: str) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    return next((one.value for one in node.keywords if one.arg == name), None)


def replace_argument(node: ast.Call, index: int, value: ast.expr) -> ast.Call:
    other = copy.deepcopy(node)
    other.args[index] = value
    return other


def mask_diagonal(node: ast.AST) -> Iterator[ast.AST]:
    if called(node) not in ("tril", "triu") or not isinstance(node, ast.Call):
        return
    usual = node.args[0] if node.args else keyword(node, "diagonal")
    for more in (1, -1):
        other = with_keyword(node, "diagonal", None)
        text = f"{more}" if usual is None else f"{text_of(usual)} + {more}"
        other.args = [expression(text)]
        yield other


def strict(node: ast.AST) -> Iterator[ast.AST]:
    swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in swaps:
        yield ast.Compare(node.left, [swaps[type(node.ops[0])]()], node.comparators)


def polarity(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield node.operand
    if not isinstance(node, ast.Call):
        return
    filled = called(node) in ("masked_fill", "masked_fill_")
    if filled and not isinstance(node.args[0], ast.UnaryOp):
        yield replace_argument(node, 0, ast.UnaryOp(ast.Invert(), node.args[0]))
    mask = keyword(node, "attn_mask")
    if mask is not None:
        yield with_keyword(node, "attn_mask", ast.UnaryOp(ast.Invert(), mask))


LOWEST = (
    *("-math.inf", "-torch.inf", "float('-inf')"),
    *("torch.finfo(scores.dtype).min", "torch.finfo(torch.float32).min"),
)


def mask_value(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp | ast.Call | ast.Attribute) and text_of(node) in LOWEST:
        yield expression("-10000.0")
        yield expression("0.0")


def mask_dropped(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Call):
        return
    if keyword(node, "is_causal") is not None:
        yield with_keyword(node, "is_causal", expression("False"))
    if keyword(node, "attn_mask") is not None:
        yield with_keyword(node, "attn_mask", None)
    inner = method(node, "masked_fill", "tril")
    if inner is not None:
        yield inner


def softmax_axis(node: ast.AST) -> Iterator[ast.AST]:
    if called(node) != "softmax" or not isinstance(node, ast.Call):
        return
    for axis in ("-2", "1"):
        if keyword(node, "dim") is not None:
            yield with_keyword(node, "dim", expression(axis))
        elif node.args:
            yield replace_argument(node, len(node.args) - 1, expression(axis))


def head_map(node: ast.AST) -> Iterator[ast.AST]:
    inner = method(node, "repeat_interleave")
    if inner is not None and isinstance(node, ast.Call):
        yield expression(f"{text_of(inner)}.repeat(1, {text_of(node.args[0])}, 1, 1)")
    sides = binary(node, ast.FloorDiv)
    if sides is not None and isinstance(sides[0], ast.Name):  # an index, not a number of heads
        yield ast.BinOp(sides[0], ast.Mod(), sides[1])
        yield expression(f"{text_of(node)} ^ 1")


def scale(node: ast.AST) -> Iterator[ast.AST]:
    """Missing, squared, or of the model's width."""
    sides = binary(node, ast.Pow)
    if sides is not None and text_of(sides[1]) in ("0.5", "-0.5"):
        for power in (2 * ast.literal_eval(sides[1]), 0.0):
            yield ast.BinOp(sides[0], ast.Pow(), expression(str(power)))
        yield from _of_width(node)
    if called(node) == "sqrt" and isinstance(node, ast.Call):
        yield node.args[0]
        yield expression("1.0")
        yield from _of_width(node)
    sides = binary(node, ast.Mult, ast.Div)
    if sides is not None and text_of(sides[1]) in ("scale", "request.factor"):
        yield sides[0]


def _of_width(node: ast.AST) -> Iterator[ast.AST]:
    text = text_of(node)
    if "self.head_width" in text:
        yield expression(text.replace("self.head_width", "self.width"))
    elif "q.shape[-1]" in text:
        yield expression(text.replace("q.shape[-1]", "(q.shape[1] * q.shape[-1])"))


ROTATIONS = {"rotate_half": "rotate_pairs", "rotate_pairs": "rotate_half"}


def one_side(node: ast.AST) -> Iterator[ast.AST]:
    """Queries or keys are not turned, turned otherwise, the other way, or as one place further."""
    name = called(node)
    if not isinstance(node, ast.Call) or name not in (*ROTATIONS, "rotate"):
        return
    yield node.args[0]
    if name not in ROTATIONS:
        return
    other = copy.deepcopy(node)
    other.func = ast.Name(ROTATIONS[name], ast.Load())
    yield other
    yield replace_argument(node, 2, ast.UnaryOp(ast.USub(), node.args[2]))
    swapped = replace_argument(node, 1, node.args[2])
    yield replace_argument(swapped, 2, node.args[1])
    if len(node.args) == 3:
        yield replace_argument(node, 0, expression(f"{text_of(node.args[0])}.roll(1, 2)"))


def frequency(node: ast.AST) -> Iterator[ast.AST]:
    """Frequencies that grow, or of another base."""
    sides = binary(node, ast.Pow)
    if sides is None or not isinstance(sides[1], ast.UnaryOp):
        return
    power = sides[1].operand
    if not isinstance(power, ast.Constant):
        yield ast.BinOp(sides[0], ast.Pow(), power)
        yield ast.BinOp(expression(f"(2 * {text_of(sides[0])})"), ast.Pow(), sides[1])


def rounded_angles(node: ast.AST) -> Iterator[ast.AST]:
    """Angles in bfloat16."""
    inner = method(node, "cos", "sin")
    if inner is not None and isinstance(node, ast.Call):
        yield expression(f"{text_of(inner)}.bfloat16().{called(node)}()")


def slopes(node: ast.AST) -> Iterator[ast.AST]:
    """A bias with another sign, or other slopes."""
    if isinstance(node, ast.UnaryOp) and text_of(node).startswith("-slopes"):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) is float and node.value == 8.0:
        yield expression("4.0")


def cache_order(node: ast.AST) -> Iterator[ast.AST]:
    """New before old, or along another axis."""
    if called(node) not in ("cat", "stack") or not isinstance(node, ast.Call):
        return
    parts = node.args[0]
    if isinstance(parts, ast.Tuple) and len(parts.elts) == 2:
        yield replace_argument(node, 0, ast.Tuple(parts.elts[::-1], ast.Load()))
        if "cache" in text_of(node):
            yield parts.elts[1]


def cache_kept(node: ast.AST) -> Iterator[ast.AST]:
    """Something is not written, or not counted."""
    wrote = isinstance(node, ast.Assign | ast.AugAssign)
    wrote = wrote and "cache" in text_of(node).partition("=")[0]
    if wrote or (isinstance(node, ast.AugAssign | ast.Assign) and "_stop" in text_of(node)):
        yield ast.Pass()
    if isinstance(node, ast.Assign) and text_of(node).startswith("start = "):
        yield ast.Assign(node.targets, expression("0"), lineno=0)
    if isinstance(node, ast.IfExp) and number(node.orelse) == 0:
        yield node.orelse


def half_precision(node: ast.AST) -> Iterator[ast.AST]:
    """A step in float16 or bfloat16."""
    inner = method(node, "softmax", "exp")
    if inner is not None and isinstance(node, ast.Call):
        own = copy.deepcopy(node)
        assert isinstance(own.func, ast.Attribute)
        own.func.value = expression("s.bfloat16()")
        yield expression(f"(lambda s: {text_of(own)}.to(s.dtype))({text_of(inner)})")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield expression(f"(lambda s: s.half().to(s.dtype))({text_of(node)})")


def missing_transpose(node: ast.AST) -> Iterator[ast.AST]:
    """Numbers stay where they lie, and are called by the new shape."""
    inner = method(node, "transpose", "permute")
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        inner = node.value
    if inner is not None:
        yield expression(f"{text_of(inner)}.reshape({text_of(node)}.shape)")


def batch_mixing(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        right = text_of(node.right)
        for way in (".flip(0)", ".roll(1, 0)", ".mean(0, keepdim=True)"):
            yield ast.BinOp(node.left, ast.MatMult(), expression(f"({right}){way}"))
    if called(node) == "scaled_dot_product_attention" and isinstance(node, ast.Call):
        values = text_of(node.args[2])
        yield replace_argument(node, 2, expression(f"{values}.flip(0)"))
        yield replace_argument(node, 2, expression(f"({values} + {values}.roll(1, 0)) / 2"))


def block_border(node: ast.AST) -> Iterator[ast.AST]:
    """Blocks that begin one later, end one later or earlier, or lose what does not fill one."""
    if called(node) == "range" and isinstance(node, ast.Call) and len(node.args) == 3:
        yield replace_argument(node, 0, expression(f"{text_of(node.args[0])} + 1"))
        yield replace_argument(node, 1, expression(f"{text_of(node.args[1])} - 1"))
    if called(node) in ("min", "max") and isinstance(node, ast.Call) and len(node.args) == 2:
        for more in ("+ 1", "- 1"):
            yield replace_argument(node, 0, expression(f"{text_of(node.args[0])} {more}"))


def window_size(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and "window" in text_of(node.comparators[0]):
        for more in ("+ 1", "- 1"):
            size = expression(f"{text_of(node.comparators[0])} {more}")
            yield ast.Compare(node.left, node.ops, [size])
    if isinstance(node, ast.keyword) and node.arg == "window":
        for more in ("+ 1", "- 1"):
            size = expression(f"{text_of(node.value)} and {text_of(node.value)} {more}")
            yield ast.keyword("window", size)


PADDING = ("padding", "attention_mask", "key_padding_mask", "segment_ids")


def padding_mask(node: ast.AST) -> Iterator[ast.AST]:
    """Dropped, or over queries instead of keys."""
    tests = [f"{name} is not None" for name in PADDING]
    if isinstance(node, ast.If) and text_of(node.test) in tests:
        yield ast.If(expression("False"), node.body, node.orelse)
    if isinstance(node, ast.Subscript) and text_of(node.value) in PADDING:
        axes = {"[:, None, None, :]": "[:, None, :, None]", "[:, None, None]": "[:, None, :, None]"}
        for old, new in axes.items():
            if text_of(node).endswith(f"{old[1:]}".strip()):
                yield expression(text_of(node.value) + new)
    if isinstance(node, ast.keyword) and node.arg in ("key_padding", "padding_mask"):
        yield ast.keyword(node.arg, expression("None"))


def dropout_stays(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Attribute) and text_of(node) == "self.training":
        yield expression("True")


def training_sum(node: ast.AST) -> Iterator[ast.AST]:
    """What is divided by, or how it is summed."""
    sides = binary(node, ast.Div)
    if sides is not None and text_of(sides[1]) == "count":
        yield sides[0]
        yield ast.BinOp(sides[0], ast.Div(), expression("parts"))
    if keyword(node, "reduction") is not None and isinstance(node, ast.Call):
        yield with_keyword(node, "reduction", expression("'mean'"))
    if isinstance(node, ast.Expr) and text_of(node) == "loss.backward()":
        yield ast.parse("self.zero_grad() or loss.backward()").body[0]
    if number(node) == -100:
        yield expression("0")


def normaliser(node: ast.AST) -> Iterator[ast.AST]:
    """What weights are divided by, or the running sums of a softmax."""
    sums = ("total", "shrink", "below + 1e-06", "q @ cache['total'] + 1e-06")
    sides = binary(node, ast.Div, ast.Mult)
    if sides is not None and text_of(sides[1]) in sums:
        yield sides[0]
    sides = binary(node, ast.Sub)
    if sides is not None and "highest" in text_of(sides[1]):
        yield sides[0]
    inner = method(node, "softmax")
    if inner is not None:
        yield expression(f"({text_of(inner)}).exp()")


def bound(node: ast.AST) -> Iterator[ast.AST]:
    """A slice that begins or ends one earlier or later: `[:t]` and `[:t + 1]`."""
    if not isinstance(node, ast.Slice) or node.step is not None:
        return
    for name in ("lower", "upper"):
        usual = getattr(node, name)
        if usual is None:
            continue
        for more in (1, -1):
            known = number(usual)
            text = str(known + more) if known is not None else f"{text_of(usual)} + {more}"
            other = copy.deepcopy(node)
            setattr(other, name, expression(text))
            yield other


def range_bound(node: ast.AST) -> Iterator[ast.AST]:
    """Positions that begin or end one earlier or later."""
    if called(node) == "arange" and isinstance(node, ast.Call):
        if len(node.args) > 1:
            for more in (1, -1):
                moved = [expression(f"{text_of(one)} + {more}") for one in node.args[:2]]
                other = copy.deepcopy(node)
                other.args[:2] = moved
                yield other
        elif node.args:
            yield ast.BinOp(node, ast.Sub(), expression("1"))
            yield expression(f"{text_of(node)}.flip(0)")


def and_or(node: ast.AST) -> Iterator[ast.AST]:
    swaps = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
    if isinstance(node, ast.BinOp) and type(node.op) in swaps:
        yield ast.BinOp(node.left, swaps[type(node.op)](), node.right)
        yield node.left
        yield node.right
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values)


def swapped(node: ast.AST) -> Iterator[ast.AST]:
    """Queries for keys, keys for values."""
    if called(node) == "scaled_dot_product_attention" and isinstance(node, ast.Call):
        for order in ((1, 0, 2), (0, 2, 1)):
            other = copy.deepcopy(node)
            other.args[:3] = [node.args[one] for one in order]
            yield other
    sides = binary(node, ast.MatMult)
    if sides is not None and isinstance(sides[1], ast.Attribute) and sides[1].attr == "mT":
        yield expression(f"{text_of(sides[1].value)} @ ({text_of(sides[0])}).mT")
    if isinstance(node, ast.Compare) and "None" in text_of(node) and ":" in text_of(node):
        yield ast.Compare(node.comparators[0], node.ops, [node.left])


def sign(node: ast.AST) -> Iterator[ast.AST]:
    swaps = {ast.Add: ast.Sub, ast.Sub: ast.Add}
    if isinstance(node, ast.BinOp) and type(node.op) in swaps:
        yield ast.BinOp(node.left, swaps[type(node.op)](), node.right)


def equality(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        yield ast.Compare(node.left, [ast.LtE()], node.comparators)
        yield ast.Compare(node.left, [ast.NotEq()], node.comparators)


def axis(node: ast.AST) -> Iterator[ast.AST]:
    """A sum over another axis."""
    if called(node) in ("sum", "amax") and isinstance(node, ast.Call) and node.args:
        known = number(node.args[0])
        if known is not None:
            yield replace_argument(node, 0, expression("-2" if known == -1 else "0"))


OPERATORS = (
    Operator("mask diagonal", "the causal mask is one off", mask_diagonal),
    Operator("strict", "< for <=, > for >=", strict),
    Operator("mask polarity", "what is to be hidden is seen", polarity),
    Operator("mask value", "a finite number for minus infinity", mask_value),
    Operator("mask dropped", "there is no mask", mask_dropped),
    Operator("softmax axis", "weights add up over another axis", softmax_axis),
    Operator("head map", "heads read another key/value head", head_map),
    Operator("scale", "missing, squared, or by the model's width", scale),
    Operator("rotary, one side", "queries and keys turn differently", one_side),
    Operator("rotary frequency", "frequencies grow, or have another base", frequency),
    Operator("rounded angles", "angles in bfloat16", rounded_angles),
    Operator("slopes", "another sign or other slopes of ALiBi", slopes),
    Operator("cache order", "new keys before old ones, or instead of them", cache_order),
    Operator("cache index", "not written, not counted, positions start anew", cache_kept),
    Operator("half precision", "a step in float16 or bfloat16", half_precision),
    Operator("missing transpose", "a reshape for a transpose", missing_transpose),
    Operator("batch mixing", "rows of a batch read each other", batch_mixing),
    Operator("block border", "blocks begin or end one off", block_border),
    Operator("window", "one key more or fewer", window_size),
    Operator("padding mask", "dropped, or over queries", padding_mask),
    Operator("dropout", "on in evaluation mode", dropout_stays),
    Operator("gradient", "parts are summed otherwise", training_sum),
    Operator("normaliser", "a sum that is not divided by", normaliser),
    Operator("slice bound", "one earlier or later", bound),
    Operator("range bound", "positions one off, or backwards", range_bound),
    Operator("and, or", "one for the other, or one side only", and_or),
    Operator("swapped", "queries for keys, keys for values, rows for columns", swapped),
    Operator("sign", "+ for -, - for +", sign),
    Operator("equality", "<= or != for ==", equality),
    Operator("axis", "a sum over another axis", axis),
)
