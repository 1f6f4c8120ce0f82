"""What a model takes besides the text or picture that it is audited with, and was not given."""

import re

from attnlab.audit.contract import Finding
from attnlab.audit.hf.subject import Model
from attnlab.audit.signature import signature

# images, videos, sound and numbers; what comes along with them (grids, masks, sizes) is not told
OTHERS = re.compile(
    r"pixel_values\w*|image_embeds|bbox|input_features|input_values|\w*audio_(values|codes|input_ids)"
)
ENCODED = re.compile(r"encoder_(hidden_states|outputs)")  # of another model, or another part
CROSS = re.compile(r"(^|\.)(encoder_attn|cross_?att\w*|encdec\w*)$", re.IGNORECASE)


def unseen_inputs(subject: Model) -> list[Finding]:
    """A finding that names them, if there are any: what they do was not looked at."""
    how = subject.convention
    names = [
        one
        for one in signature(how.code.forward).parameters
        if one not in how.inputs
        and (OTHERS.fullmatch(one) or (ENCODED.fullmatch(one) and attends_elsewhere(subject)))
    ]
    if not names:
        return []
    listed = ", ".join(f"`{one}`" for one in names)
    detail = f"it takes {listed} too, and was given none: what that does was not examined"
    return [Finding(name="other inputs", verdict="cannot tell", detail=detail)]


def attends_elsewhere(subject: Model) -> bool:
    """Whether it has attention to an encoder that it was not given."""
    how = subject.convention
    return not how.encoder_text and any(CROSS.search(name) for name, _ in how.code.named_modules())
