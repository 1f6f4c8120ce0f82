"""The device on which code under audit runs; inputs are drawn, and outputs compared, on the CPU."""

import torch

from attnlab.audit.errors import InputError
from attnlab.printable import one_line


def device_for(name: str) -> str:
    """A device that is there, as PyTorch names it; empty for the CPU."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name} is no device; use cpu, cuda or cuda:1") from None
    if device.type == "cpu":
        return ""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device {name}: PyTorch finds no GPU here; audit it on a machine that has one, or "
            "leave --device out"
        )
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        reason = one_line(str(error).partition("\n")[0], 120)
        raise InputError(f"--device {name} cannot be used: {reason}") from None
    if device.type == "cuda":  # plain PyTorch is to be what others are measured by
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return str(device)
