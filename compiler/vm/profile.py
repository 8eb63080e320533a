"""Sums up the time that a call of the virtual machine took: a row for every kernel, every other primitive, and every
other kind of instruction.
"""

from collections.abc import Mapping

from retune.compiler.executor.debug_report import Report, Value


class Profile:
    """The sums of one call."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def note(self, name: str, seconds: float) -> None:
        """Take in one instruction or kernel. The time of a function that is called is that of its instructions."""
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + seconds, count + 1

    def report(self, device: str, threads: int) -> Report:
        """The report."""
        total = sum(seconds for seconds, _ in self._sums.values())
        calls: list[Mapping[str, Value]] = [
            {
                "Name": name,
                "Duration (us)": seconds * 1e6,
                "Percent": 100 * seconds / total if total else 0.0,
                "Device": device,
                "Count": count,
                "Argument Shapes": "",
                "Hash": "",
            }
            for name, (seconds, count) in self._sums.items()
        ]
        count = sum(count for _, count in self._sums.values())
        metrics: dict[str, Value] = {"Duration (us)": total * 1e6, "Count": count, "Device": device}
        return Report(tuple(calls), {device: metrics}, {"Executor": "VM", "Number of threads": threads})
