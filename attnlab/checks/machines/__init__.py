"""`attnlab check machines`: the same verdicts on every machine, imitated on this one."""
