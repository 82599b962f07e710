"""A team of threads, done one after the other."""

from __future__ import annotations


def run(calls):
    """What each call (function, argument) answers, in order."""
    return [function(argument) for function, argument in calls]


def serve(commands):
    """What is done of some commands (function, argument), and how many are left: None ends it."""
    answers = []
    for function, argument in commands:
        if function is None:
            break
        answers.append(function(argument))
    return answers, len(commands) - len(answers)


def dismiss(threads, count):
    """Which of the threads still serve."""
    return threads[count:]
