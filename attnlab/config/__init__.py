"""Settings: frozen dataclasses, changed by dotted `key=value` words, saved as plain JSON.

A field made by `setting` has a default, a range and a meaning. A field made by `choice(kind,
default)` holds the settings of one registered option of that kind: `positions=rotary` takes that
option with its own defaults, `positions.base=5000` changes one value in it.
"""

from attnlab.config.describe import Description, describe
from attnlab.config.fields import Limits, check_value, choice, refusal, setting, settings
from attnlab.config.hints import ConfigError
from attnlab.config.overrides import override, paths, split_override, to_overrides
from attnlab.config.plain import flat, from_dict, to_dict

__all__ = [
    "ConfigError",
    "Description",
    "Limits",
    "check_value",
    "choice",
    "describe",
    "flat",
    "from_dict",
    "override",
    "paths",
    "refusal",
    "setting",
    "settings",
    "split_override",
    "to_dict",
    "to_overrides",
]
