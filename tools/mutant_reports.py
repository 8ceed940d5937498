"""What became of mutants, in tables: by subject, and by the test files that kill them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tools.mutations import Mutant


def report(results: Mapping[Mutant, str]) -> str:
    """A table of the subjects, and the mutants that survived."""
    lines = ["subject      mutants  killed  survived    rate"]
    for subject in [*dict.fromkeys(mutant.subject for mutant in results), "all"]:
        judged = [result for m, result in results.items() if subject in {m.subject, "all"}]
        survived = judged.count("survived")
        rate = 1 - survived / max(1, len(judged))
        killed = len(judged) - survived
        lines.append(f"{subject:11} {len(judged):8} {killed:7} {survived:9} {rate:7.1%}")
    for mutant, result in results.items():
        if result == "survived":
            lines += ["", f"{mutant.path}:{mutant.line}", f"  {mutant.change}"]
    return "\n".join(lines)


def report_of_files(kills: Sequence[Sequence[str]], seconds: Mapping[str, float]) -> str:
    """A table of the test files, those that are missed most first."""
    small = small_set(kills, seconds)
    rows = []
    for file in seconds.keys() | {file for files in kills for file in files}:
        killed = sum(file in files for files in kills)
        alone = sum([file] == list(files) for files in kills)
        rows.append((-alone, -killed, file))
    lines = ["killed   alone  seconds  in a small set  test file"]
    for alone, killed, file in sorted(rows):
        mark = "yes" if file in small else ""
        lines.append(f"{-killed:6} {-alone:7} {seconds.get(file, 0.0):8.1f}  {mark:14}  {file}")
    return "\n".join(lines)


def small_set(kills: Sequence[Sequence[str]], seconds: Mapping[str, float]) -> set[str]:
    """Test files that together kill every mutant that is killed, chosen one after another: the one
    that kills most of what is left for its time.
    """
    chosen: set[str] = set()
    left = [set(files) for files in kills if files]
    while left:
        worth = {
            file: (
                {file} in left,
                sum(file in files for files in left) / (1 + seconds.get(file, 0.0)),
                file,
            )
            for file in set().union(*left)
        }
        best = max(worth, key=worth.__getitem__)
        chosen.add(best)
        left = [files for files in left if best not in files]
    return chosen
