"""What a server answers instead of text: OpenAI's error objects, each with its status."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from selfspec.errors import OutOfMemoryError, SelfspecError
from selfspec.model.reading import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator


class ServiceError(SelfspecError):
    """A request that is not answered, for a reason that lies in the service. ``headers`` are HTTP's."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    headers: ClassVar[dict[str, str]] = {}


class QueueFullError(ServiceError):
    """As many requests wait as may."""

    status, kind, code = 429, "rate_limit_error", "queue_full"
    headers: ClassVar[dict[str, str]] = {"retry-after": "1"}


class ClosingError(ServiceError):
    """The server shuts down."""

    status, code = 503, "shutting_down"
    headers: ClassVar[dict[str, str]] = {"retry-after": "5"}


class DeadlineError(ServiceError):
    """The time of a request is over. Clients must not try again by themselves: it would end in the same way."""

    status, kind, code = 504, "timeout_error", "deadline_exceeded"
    headers: ClassVar[dict[str, str]] = {"x-should-retry": "false"}


class GoneError(ServiceError):
    """The client has left: nobody reads an answer. The status is what nginx writes into its log."""

    status, code = 499, "client_closed_request"


class UnknownModelError(ServiceError):
    """A model that is not served here."""

    status, kind, code = 404, "invalid_request_error", "model_not_found"


class KeyRefusedError(ServiceError):
    """No API key, or a wrong one."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"
    headers: ClassVar[dict[str, str]] = {"www-authenticate": "Bearer"}


class TooLargeError(ServiceError):
    """A body over the limit."""

    status, kind, code = 413, "invalid_request_error", "body_too_large"


class UnsupportedBodyError(ServiceError):
    """A body that is not JSON by its content type."""

    status, kind, code = 415, "invalid_request_error", "not_json"


class RouteError(ServiceError):
    """A path or method that there is not."""

    status, kind, code = 404, "invalid_request_error", "no_such_route"


class MethodError(RouteError):
    """A method that the path does not have."""

    status, code = 405, "no_such_method"


class FieldError(SelfspecError):
    """A field of the body that is wrong; ``param`` names it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@contextmanager
def naming(param: str) -> Iterator[None]:
    """What is wrong within concerns this field."""
    try:
        yield
    except SelfspecError as error:
        raise FieldError(str(error), param) from error


def status_of(error: Exception) -> int:
    """The HTTP status: what the user can correct is 400, memory that runs out 503, our own bugs 500."""
    if isinstance(error, ServiceError):
        return error.status
    if isinstance(error, MemoryError):
        return 503
    return 400 if isinstance(error, SelfspecError) else 500


def headers_of(error: Exception) -> dict[str, str]:
    """What tells clients whether to try again."""
    return dict(error.headers) if isinstance(error, ServiceError) else {}


def body_of(error: Exception) -> dict[str, Any]:
    """OpenAI's error object. The message of an error that is not ours stays in the log."""
    code: str | None = None
    kind = "invalid_request_error"
    if isinstance(error, ServiceError):
        kind, code = error.kind, error.code
    elif isinstance(error, MemoryError):
        kind, code = "server_error", "out_of_memory"
    elif not isinstance(error, SelfspecError):
        kind, code = "server_error", "internal_error"
    is_ours = isinstance(error, SelfspecError | OutOfMemoryError)
    fallback = "out of memory; try again later" if isinstance(error, MemoryError) else "internal error; see the log"
    message = one_line(error, 1000) if is_ours else fallback
    param = getattr(error, "param", None)
    return {
        "error": {"message": _utf8(message), "type": kind, "param": param and _utf8(param), "code": code},
    }


def _utf8(text: str) -> str:
    """A client's words without lone surrogates, which no answer could carry back."""
    return text.encode("utf-8", "replace").decode()
