"""What cachec asks of a random generator that all of a process shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Generator(ABC):
    """A random generator that a whole process shares.

    What an isolated stage draws depends on its state, so that is an input; and the call leaves it in another.
    """

    #: As users write it: ``numpy.random``.
    name: str
    #: The module to be imported before a state is put in another process.
    module: str
    #: Whether a child that was forked goes on with its parent's state.
    is_inherited: bool = True
    #: Whether a state tells that a seed was set. Of one that does not, every state counts.
    tells_seed: bool = True

    @abstractmethod
    def state(self) -> bytes | None:
        """The state of now. None while the library is not imported, and for a generator of a kind unknown here."""

    @abstractmethod
    def put(self, state: bytes, *, seeds: bool) -> None:
        """Go on from a state that ``is_state``; nothing where the library is not imported.

        seeds: whether that counts as setting a seed. Else what ``is_seeded`` and ``watch`` say stays as it is.
        """

    @abstractmethod
    def is_state(self, state: bytes) -> bool:
        """Whether these bytes are a state. They come from the store, and may be anything."""

    @abstractmethod
    def is_seeded(self, state: bytes) -> bool:
        """Whether the program has set a seed, so that another process may have the state of now again.

        In a worker, for the stages that its stage calls: yes.
        """

    def was_seeded(self, before: bytes, state: bytes) -> bool:
        """Whether a run in this process, which came from one state to another, set a seed. One that drew before that
        counts as one that set a seed alone."""
        return self.is_seeded(state) and not self.is_seeded(before)

    @abstractmethod
    def watch(self) -> Callable[[], bool]:
        """In a worker: the result ends this, and tells whether a seed was set since. May change the state."""

    def counted(self, state: bytes) -> bytes:
        """What of a state decides the numbers to come."""
        return state

    def is_untouched(self, state: bytes) -> bool:
        """Whether no number has been drawn since the seed was set; False if this is unknown."""
        return False
