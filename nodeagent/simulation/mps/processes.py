"""What a program is called in /proc."""


def become(name: str) -> None:
    """Be called in /proc what the real program is called, whatever runs the script."""
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)
