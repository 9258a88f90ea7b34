"""The exceptions that frozenprobe raises on purpose.

Every one of them is the fault of the input, carries one line that says what to do, and makes the command line exit
with code 2. Anything else that escapes is a bug in frozenprobe.
"""


class FrozenprobeError(Exception):
    """Base class: wrong input, explained in one line."""


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


class EvaluationError(FrozenprobeError):
    """An evaluation inside a training loop failed, and training was to stop in that case."""
