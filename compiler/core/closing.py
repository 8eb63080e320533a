"""`Closing`: a base of classes whose instances end with a `with` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Calls `close` at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """End what the instance holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
