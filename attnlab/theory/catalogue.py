"""The catalogue of claims: each by its name, and by the course questions it settles.

Those that settle none are about mechanisms that the courses do not ask about.
"""

from collections.abc import Sequence

from attnlab import config, registry
from attnlab.theory import sources
from attnlab.theory.claim import About, Claim


def names(*, quick: bool = False) -> list[str]:
    """All claims, in the order of the theory; quick ones train nothing."""
    every = [option.name for option in registry.options("claim")]
    return [name for name in every if not quick or not registry.load("claim", name).trained]


def load(name: str, overrides: Sequence[str] = ()) -> Claim:
    """A claim by name, with `key=value` overrides applied."""
    claim: Claim = config.override(registry.load("claim", name)(), overrides)
    return claim


def choose(name: str, overrides: Sequence[str] = (), knob: bool = False) -> Claim:
    """As a person asks for it; what cannot be run is refused with the claim's name."""
    if "=" in name:
        raise ValueError(f"{name!r} is no claim; change a setting with --set {name}")
    registry.find("claim", name)
    try:
        claim = load(name, overrides)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    keys = {config.split_override(one)[0][0] for one in overrides}
    for key in sorted(keys & set(claim.about.knob.changes)) if knob else []:
        raise ValueError(f"{name}: --knob changes {key} itself; leave out --knob or --set {key}")
    return claim


def about(name: str) -> About:
    found: About = registry.load("claim", name).about
    return found


def by_question() -> dict[str, list[str]]:
    """The claims that settle each question of the courses; none for those in UNSETTLED."""
    settles = {name: about(name).questions for name in names()}
    return {
        question: [name for name, questions in settles.items() if question in questions]
        for question in sources.QUESTIONS
    }


def beyond_the_courses() -> list[str]:
    """The claims that settle no question of a course."""
    return [name for name in names() if not about(name).questions]


def find_by_question(question: str) -> list[str]:
    """The claims that settle a question such as "A4 1(c)", all of its parts included."""
    settled, wanted = by_question(), sources.find_questions(question)
    found = [name for name in names() if any(name in settled[one] for one in wanted)]
    if not found:
        raise ValueError(f"no claim settles {question}: {sources.UNSETTLED[wanted[0]]}")
    return found
