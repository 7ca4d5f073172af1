"""The OpenAPI document: requests from the pydantic models that read them, answers as OpenAI's clients know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec._version import __version__
from selfspec.server.fields import MOST_STOPS, ChatFields, CompletionFields

if TYPE_CHECKING:
    from selfspec.server.fields import TextFields
    from selfspec.server.settings import ServerOptions

_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string", "minLength": 1}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_PENALTY = {"type": "number", "minimum": -2, "maximum": 2}
_COUNT = {"type": "integer", "minimum": 1}
# What the engine checks where the models have types only. Lengths, vocabularies, and fields that exclude each
# other, no schema says: they get a 400.
_TIGHTER: dict[str, dict[str, Any]] = {
    "n": {"type": "integer", "minimum": 1},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": MOST_STOPS}]},
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "min_tokens": {"type": "integer", "minimum": 0},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": _SHARE,
    "typical_p": _SHARE,
    "top_k": {"type": "integer", "minimum": 0},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0},
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number"},
    },
    "prediction": {
        "anyOf": [
            _TEXT,
            {
                "type": "object",
                "required": ["type", "content"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "content"},
                    "content": {
                        "anyOf": [
                            _TEXT,
                            {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "object",
                                    "required": ["type", "text"],
                                    "properties": {"type": {"const": "text"}, "text": _TEXT},
                                },
                            },
                        ]
                    },
                },
            },
        ]
    },
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role"],
            "properties": {"role": {"type": "string"}},
            "additionalProperties": True,
        },
    },
    "prompt": {
        "anyOf": [
            _TEXT,
            {"type": "array", "items": _TEXT, "minItems": 1},
            _TOKENS,
            {"type": "array", "items": _TOKENS, "minItems": 1},
        ]
    },
    "speculative": {
        "type": "object",
        "properties": {"enabled": {"type": ["boolean", "null"]}, "draft": {"type": ["string", "null"]}},
        "description": "A drafter and its options; `/v1/drafters` lists them.",
        "additionalProperties": True,
    },
}
_STATUSES = {
    "400": "the request; `param` names the field",
    "401": "no API key, or a wrong one",
    "404": "no such model",
    "413": "a body over the limit",
    "415": "a body that is not JSON by its content type",
    "429": "too many texts wait; `Retry-After` says when to come back",
    "499": "the client has left",
    "500": "a mistake of ours",
    "503": "shutting down, or out of memory",
    "504": "the deadline is over",
}


def document(options: ServerOptions) -> dict[str, Any]:
    """All of it. A client that generates code, or tests, from it needs nothing else."""
    definitions: dict[str, Any] = {"Error": _error(), "Usage": _usage()}
    bodies = {}
    for kind in (ChatFields, CompletionFields):
        bodies[kind] = _body(kind, definitions)
    texts = {
        "/v1/chat/completions": _asks(bodies[ChatFields], "chat.completion", {"message": {"type": "object"}}),
        "/v1/completions": _asks(bodies[CompletionFields], "text_completion", {"text": {"type": "string"}}),
    }
    listed = _object({"object": {"const": "list"}, "data": {"type": "array", "items": {"type": "object"}}})
    model = _object({"id": {"type": "string"}, "object": {"const": "model"}})
    named = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
    health = _read("Whether it takes requests.", _json(_object({"status": {"type": "string"}})), "503")
    health["responses"]["503"] = health["responses"]["200"] | {"description": "shutting down"}
    metrics = {"text/plain": {"schema": {"type": "string"}}}
    paths: dict[str, Any] = {
        **{path: {"post": operation} for path, operation in texts.items()},
        "/v1/models": {"get": _read("The model.", _json(listed), "401")},
        "/v1/models/{model}": {"get": _read("The model.", _json(model), "401", "404") | {"parameters": named}},
        "/v1/drafters": {"get": _read("Who may draft, with which options.", _json(listed), "401")},
        "/health": {"get": health | {"security": []}},
        "/metrics": {"get": _read("Prometheus metrics.", metrics, "401")},
    }
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "selfspec", "version": __version__, "description": f"OpenAI's API for {options.name}."},
        "paths": paths,
        "components": {"schemas": definitions},
    }
    if options.api_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _body(kind: type[TextFields], definitions: dict[str, Any]) -> dict[str, str]:
    """The schema of a request, put among ``definitions``; a reference to it."""
    schema = kind.model_json_schema(ref_template=_REF)
    inner = schema.pop("$defs", {})
    for made in (schema, *inner.values()):
        _accept_null(made)
    properties = schema["properties"]
    for name, tighter in _TIGHTER.items():
        if name in properties:
            is_required = name in schema.get("required", ())
            properties[name] = tighter if is_required else _or_null(tighter)
    for name, only in kind.ONLY.items():
        properties[name] = {"enum": [only, None]}
    definitions |= inner | {kind.__name__: schema}
    return {"$ref": _REF.format(model=kind.__name__)}


def _accept_null(schema: dict[str, Any]) -> None:
    """Null is the same as nothing, wherever nothing may be."""
    required = schema.get("required", ())
    for name, found in schema.get("properties", {}).items():
        if name not in required:
            schema["properties"][name] = _or_null(found)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if null in schema.get("anyOf", ()) or not schema.keys() - {"title", "default", "description"}:
        return schema
    kept = {key: schema[key] for key in ("title", "default", "description") if key in schema}
    return kept | {"anyOf": [{key: value for key, value in schema.items() if key not in kept}, null]}


def _asks(body: dict[str, str], kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    """An endpoint that writes texts."""
    choices = {
        "type": "array",
        "items": _object({"index": {"type": "integer"}, "finish_reason": {"type": "string"}, **choice}),
    }
    answer = _object(
        {
            "id": {"type": "string"},
            "object": {"const": kind},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "choices": choices,
            "usage": {"$ref": _REF.format(model="Usage")},
        }
    )
    streamed = {"text/event-stream": {"schema": {"type": "string", "description": "`stream`: chunks, then [DONE]"}}}
    return {
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "The answer.", "content": _json(answer) | streamed}} | _failures(),
    }


def _read(summary: str, content: dict[str, Any], *statuses: str) -> dict[str, Any]:
    """An endpoint that is only read."""
    failures = {status: failed for status, failed in _failures().items() if status in statuses}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}} | failures}


def _failures() -> dict[str, Any]:
    content = _json({"$ref": _REF.format(model="Error")})
    return {status: {"description": text, "content": content} for status, text in _STATUSES.items()}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


def _error() -> dict[str, Any]:
    words = {"type": ["string", "null"]}
    return _object(
        {"error": _object({"message": {"type": "string"}, "type": words, "param": words, "code": words})}
    )


def _usage() -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return _object({name: {"type": "integer", "minimum": 0} for name in names})
