"""A walk that makes every change between two layouts exactly once."""

from __future__ import annotations


def all_pairs(count: int) -> list[int]:
    """A closed walk over `count` layouts in which each ordered pair of different ones occurs once.

    Found as an Eulerian circuit of the complete directed graph (Hierholzer's algorithm).
    """
    unused = [[j for j in range(count) if j != i] for i in range(count)]
    stack, circuit = [0], []
    while stack:
        here = stack[-1]
        if unused[here]:
            stack.append(unused[here].pop())
        else:
            circuit.append(stack.pop())
    return circuit[::-1]
