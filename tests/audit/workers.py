"""Workers for tests: a process of its own finds them by name."""

import os
import time
from typing import Any

from attnlab.audit.answer import Answer, plain_of
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.partial import UNDER_WAY, unexamined


def unlucky(connection: Any) -> None:
    while True:
        name = connection.recv()["target"]
        if name == "dies":
            os._exit(7)
        if name == "hangs":
            time.sleep(60)
        connection.send({"target": name, "verdict": "pass", "checks": [{}]})


def talkative(connection: Any) -> None:
    """Says what is known, and then dies or hangs."""
    while True:
        name = connection.recv()["target"]
        verdict = "fail" if name == "fails" else "pass"
        known = Certificate(
            target=name,
            contract=Contract(),
            findings=(
                Finding(name="finite", verdict=verdict, detail="as it should be"),
                *unexamined(["window"]),
            ),
            unfinished=UNDER_WAY,
        )
        connection.send({"so_far": plain_of(Answer(target=name, certificate=known))})
        if name == "dies":
            os._exit(7)
        time.sleep(60)
