"""An aggregation in a process of its own that kills itself and its JVM at a chosen step.

    python -m tests.spark.child '{"spec": …, "options": {…}, "die": ["after", "publish", 2]}'

`die` = (before or after, method of TableQuery or TableDirectory, the how manieth call of it).
"""

import json
import os
import signal
import sys

from edged.central.aggregate import AggregateOptions, TableQuery, aggregate
from edged.central.spec import parse_spec
from edged.central.tables import TableDirectory


def deadly(step, when, nth):
    """`step`, but the whole process group is killed around its `nth` call."""
    calls = 0

    def wrapped(*arguments):
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.killpg(0, signal.SIGKILL)
        step(*arguments)
        if calls == nth:
            os.killpg(0, signal.SIGKILL)

    return wrapped


def main():
    order = json.loads(sys.argv[1])
    if order.get("die"):
        when, point, nth = order["die"]
        owner = TableQuery if hasattr(TableQuery, point) else TableDirectory
        setattr(owner, point, deadly(getattr(owner, point), when, nth))
    aggregate(parse_spec(order["spec"]), AggregateOptions(**order["options"]), on_event=tell)


def tell(event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
