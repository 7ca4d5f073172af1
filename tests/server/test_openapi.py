"""The OpenAPI document; `schemathesis` attacks a running server with it (CONTRIBUTING.md)."""

from __future__ import annotations

import pytest

from selfspec.server.fields import ChatFields, CompletionFields
from selfspec.server.openapi import document
from selfspec.server.settings import ServerOptions


def references(found):
    if isinstance(found, dict):
        if "$ref" in found:
            yield found["$ref"]
        for value in found.values():
            yield from references(value)
    elif isinstance(found, list):
        for value in found:
            yield from references(value)


def test_the_document_names_every_endpoint_field_and_status(server):
    """Guards code and tests that are made from it: nothing is missing, nothing refers to what is not there."""
    status, _, found = server.send("/openapi.json", b"", "GET")
    assert (status, found["openapi"], "security" in found) == (200, "3.1.0", False)
    ours = {"/", "/openapi.json"}
    routes = {route.path.replace(":path", ""): route for route in server.service.app.routes}
    assert {path for path in routes if not path.startswith("/page/")} - ours == set(found["paths"])
    for path, operations in found["paths"].items():
        assert {method.upper() for method in operations} == routes[path].methods - {"HEAD"}
        (operation,) = operations.values()
        assert "200" in operation["responses"]
    schemas = found["components"]["schemas"]
    assert {name.removeprefix("#/components/schemas/") for name in references(found)} <= set(schemas)
    for kind, needed in ((ChatFields, "messages"), (CompletionFields, "prompt")):
        schema = schemas[kind.__name__]
        names = {field.alias or name for name, field in kind.model_fields.items()} | set(kind.ONLY)
        assert (set(schema["properties"]), schema["required"]) == (names, [needed])
        assert schema["additionalProperties"] is False
        for name, field in schema["properties"].items():
            kinds = field.get("anyOf", [field])
            assert (
                name == needed or {"type": "null"} in kinds or None in field.get("enum", ()) or len(field) <= 3
            ), name
    keyed = document(ServerOptions("m", api_key="sesame"))
    assert keyed["security"] == [{"key": []}]
    assert keyed["paths"]["/health"]["get"]["security"] == []
    assert "sesame" not in str(keyed)


@pytest.mark.parametrize(("path", "method"), [("/v1/models", "POST"), ("/v1/completions", "DELETE"), ("/", "POST")])
def test_a_wrong_method_is_told_the_right_ones(server, path, method):
    """Guards HTTP: 405 with Allow, whatever the body is."""
    status, headers, _ = server.fetch(path, method)
    assert status == 405
    assert set(headers["allow"].split(", ")) in ({"GET", "HEAD"}, {"POST"})
