"""The errors that users can meet.

::

    SelfspecError                  everything below; the command line exits with 2
     ├─ OptionError                a value that is not allowed (also a ValueError)
     │   └─ ConstraintError       what was asked for leaves no token to choose
     ├─ PromptError                an empty prompt, or one longer than the context (also a ValueError)
     ├─ RuntimeMissingError        what a runtime needs is not installed
     ├─ OutOfMemoryError           weights or cache do not fit (also a MemoryError)
     ├─ TrainingError              a training that went wrong by its numbers
     └─ ModelError                 about a checkpoint
         ├─ ModelNotFoundError     no such folder, file, hub id or installed package
         ├─ UnsupportedModelError  an architecture or option that no family here covers
         └─ CorruptModelError      a damaged, incomplete or contradictory file

Every message says what was given, what is allowed, and what to do. ``assert`` is kept for our own bugs.
"""


class SelfspecError(Exception):
    """Any mistake that a user can correct."""


class OptionError(SelfspecError, ValueError):
    """A value that is not allowed."""


class ConstraintError(OptionError):
    """Constraints that contradict each other: no token is left to choose."""


class PromptError(SelfspecError, ValueError):
    """A prompt that cannot be answered."""


class RuntimeMissingError(SelfspecError):
    """A runtime whose requirements are not installed."""


class OutOfMemoryError(SelfspecError, MemoryError):
    """Weights or cache do not fit into memory."""


class TrainingError(SelfspecError):
    """A training whose loss is no number any more."""


class ModelError(SelfspecError):
    """Anything about a checkpoint."""


class ModelNotFoundError(ModelError):
    """No such folder, file, hub id or installed package."""


class UnsupportedModelError(ModelError):
    """An architecture, or an option of one, that no family here covers."""


class CorruptModelError(ModelError):
    """A damaged, incomplete or contradictory checkpoint."""
