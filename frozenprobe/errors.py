"""The exceptions that frozenprobe raises on purpose.

Every one of them carries one line that says what to do. All but those of other ranks are the fault of the input and make the command
line exit with code 2. Anything else that escapes is a bug in frozenprobe.
"""


class FrozenprobeError(Exception):
    """Base class: wrong input, explained in one line.

    Attributes:
        exit_code: What the command line exits with.
    """

    exit_code = 2


class SettingsError(FrozenprobeError):
    """An option has an impossible value, or two options contradict each other."""


class EncoderError(FrozenprobeError):
    """A checkpoint cannot be recognised, loaded or run."""


class DataError(FrozenprobeError):
    """A task's data is missing, damaged, unlabelled or otherwise unfit to be scored."""


class FeatureError(FrozenprobeError):
    """Features are unusable: non-finite values, or an encoder that breaks its contract."""


class ProbeError(FrozenprobeError):
    """A probe cannot be fitted on what it was given."""


class RecordError(FrozenprobeError):
    """A results folder cannot be read, written, or belongs to a different run."""


class ComparisonError(FrozenprobeError):
    """Runs cannot be compared or put into one table: they were not measured in the same way."""


class RankError(FrozenprobeError):
    """A process of a run over several was lost, or did not come. Nobody's input is at fault: exit code 1.

    Attributes:
        rank: The one that was lost, or None.
    """

    exit_code = 1

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.rank = rank

    def __str__(self) -> str:
        return self.args[0]


class OtherRankError(FrozenprobeError):
    """Rank 0 has failed, and says itself how; this is what the others raise."""

    exit_code = 1


class EvaluationError(FrozenprobeError):
    """An evaluation inside a training loop failed, and training was to stop in that case."""
