"""What a part of the acceptance comes to, and the one way in which it is put into words."""

from dataclasses import dataclass
from typing import Final, Literal

Outcome = Literal["proved", "not possible here", "wrong"]

TIME_UP: Final = "time is up"
"""What a part says in the place of an outcome that did not come in time: its supervisor knows whose fault that is."""

PRETENDED: Final = "PRETENDED"


class ImpossibleError(Exception):
    """This machine cannot do what the part would prove; the text says why."""


class WrongError(Exception):
    """What the part looked at is not as it must be; the text says what."""


class TimeUpError(Exception):
    """The part has no time left; the text says what it waited for."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a part came to.

    Attributes:
        part: Its name.
        text: What was seen, why it was not possible, or what is wrong.
        seconds: How long it took.
        checks: How many facts it compared.
        figure: The figure that matters most, with its unit; empty if there is none.
        pretended: True if stand-ins took the place of GPUs.
    """

    part: str
    outcome: Outcome
    text: str
    seconds: float = 0.0
    checks: int = 0
    figure: str = ""
    pretended: bool

    def __post_init__(self) -> None:
        if self.outcome == "proved" and not (self.checks and self.text):
            msg = f"{self.part} cannot be proved: it checked nothing"
            raise ValueError(msg)

    @property
    def label(self) -> str:
        """The outcome, as every file and every line of output has it."""
        return f"{PRETENDED}, {self.outcome}" if self.pretended else self.outcome

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"{self.label}: {self.part} ({self.seconds:.1f} s): {' '.join(self.text.split())}"
