"""`python -m tests.goldens [NAME ...]` (`make goldens`): record anew, all or these cases."""

import sys

from tests.goldens.cases import RECORDED, cases


def main(names: list[str]) -> None:
    """Write what differs, and remove what has no case."""
    known = cases()
    for case in known:
        if (names and case.name not in names) or not case.comparable:
            continue
        text = case.record()
        if not case.path.exists() or case.path.read_text(encoding="utf-8") != text:
            case.path.parent.mkdir(parents=True, exist_ok=True)
            case.path.write_text(text, encoding="utf-8")
            print(f"recorded {case.path}")
    for path in set(RECORDED.rglob("*.txt")) - {case.path for case in known}:
        path.unlink()
        print(f"removed {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
