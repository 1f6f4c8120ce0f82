"""Damage to files, drawn at random: mostly one bit, sometimes the end, all bytes or the file."""

from pathlib import Path

from attnlab import counter_rng


def damage(folder: Path, seed: int, trial: int) -> Path:
    """Damage one file of a folder, and name it."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    which, kind, where = counter_rng.uniform(seed, "damage", trial, [0, 1, 2])
    path = paths[int(which * len(paths))]
    content = bytearray(path.read_bytes())
    if kind < 0.87:
        bit = int(where * len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
    elif kind < 0.92:
        path.write_bytes(content[: int(where * len(content))])
    elif kind < 0.95:
        path.write_bytes(b"")
    else:
        path.unlink()
    return path
