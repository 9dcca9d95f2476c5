from typing import Protocol, runtime_checkable


@runtime_checkable
class Emitter(Protocol):
    def emit(self, op: str, depth: int) -> None: ...

    def finish(self) -> str: ...
