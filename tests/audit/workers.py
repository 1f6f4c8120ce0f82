"""Workers for tests: a process of its own finds them by name."""

import os
import time
from typing import Any


def unlucky(connection: Any) -> None:
    while True:
        name = connection.recv()["target"]
        if name == "dies":
            os._exit(7)
        if name == "hangs":
            time.sleep(60)
        connection.send({"target": name, "verdict": "pass"})
